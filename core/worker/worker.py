"""`Worker`: the thread that owns the engine. Requests go in as jobs, events come out in mailboxes.

The event loop never waits for the engine, nor the engine for a client: commands go through a
queue, and the events of a step return through mailboxes and a `ThreadBridge`.

`asyncio` is imported where it is used: library calls that wait in threads start sooner without it.
"""

from __future__ import annotations

import concurrent.futures
import gc
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from logging import DEBUG
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, field

from ..errors import DeviceError, EngineError, NextnError, UnavailableError
from ..generation import CANCELLED, NO_TOKEN
from ..state.host_memory import give_back
from .jobs import ActiveJobs, Job, Slots, TokenRecorder
from .mailboxes import ReloadWaiters, ThreadBridge
from .totals import Totals

if TYPE_CHECKING:
    import asyncio

    from ..engine.engine import Engine
    from ..runtime import Runtime
    from ..state.snapshot import SequenceSnapshot
    from ..tokenizer import ChatTemplate

LOADING, READY, DRAINING, DEAD = "loading", "ready", "draining", "dead"
SLEEPING = "sleeping"  # the model is not in memory, or is being loaded again
MAX_FAILURES: Final = 3  # failed steps in a row until the engine counts as dead
_COMMANDS: Final = 64  # between two steps, so that a burst does not delay running sequences
_LONGEST_RETRY_S: Final = 60
_JUDGED_AFTER: Final = 100  # steps, until a drafter counts as idle
_log: Final = logging.getLogger(__name__)
T = TypeVar("T")


class Loaded(Struct, frozen=True):
    """A loaded model: what the engine's thread serves."""

    runtime: Runtime
    engine: Engine
    template: ChatTemplate | None = None
    file_sampling: Mapping[str, Any] = field(default_factory=dict)  # of the file, without flags
    n_bytes: int = 0  # in memory: weights and state


class Worker:
    """Public methods run in the loop's thread, those with an underscore mostly in the engine's."""

    def __init__(
        self,
        load: Callable[[], Loaded],
        *,
        max_queue: int = 512,
        queue_s: float = 600.0,
        recorder: TokenRecorder | None = None,
    ) -> None:
        self.totals = Totals()
        self.state = LOADING
        self.failure: BaseException | None = None  # why it is dead
        self.loaded: Loaded | None = None
        self._bridge = ThreadBridge()
        self._recorder = recorder
        self._jobs = ActiveJobs(self.totals, self._bridge, queue_s, recorder)
        self._load, self._max_queue = load, max_queue
        self._on_change: Callable[[], None] = lambda: None
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._is_loaded = Event()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._n_submitted = self._n_failures = 0
        self.idle_drafters: dict[str, str] = {}  # by name, with the reason
        self._named_idle: set[str] = set()
        self._is_stopped = self._unload_requested = self._is_wanted = False
        self._reload_waiters = ReloadWaiters()

    def begin(self) -> None:
        """Starts the thread, which loads the model. May be called in any thread."""
        if self._thread.ident is None:
            self._thread.start()

    def start(self, on_change: Callable[[], None]) -> None:
        """Called in the loop, where `on_change` is called after the engine's thread has changed
        `state`; perhaps twice for one change."""
        import asyncio

        loop = asyncio.get_running_loop()
        self._bridge.loop, self._on_change = loop, on_change
        self.begin()
        if self.state != LOADING:
            loop.call_soon(on_change)

    def wait_until_ready(self) -> None:
        """Called in a thread without a loop. Raises the error that loading ended with."""
        self._is_loaded.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._bridge.loop

    @property
    def n_open(self) -> int:
        """Number of sequences that wait or run."""
        return self._n_submitted - self._jobs.n_ended

    @property
    def n_waiting(self) -> int:
        return len(self._jobs.waiting)

    @property
    def n_running(self) -> int:
        return len(self._jobs.running)

    @property
    def slots(self) -> list[Job | None]:
        """The running sequences by `id_slot`; None: the slot is free."""
        return self._jobs.slots.jobs

    @property
    def n_slots(self) -> int:
        return len(self.slots)

    def last_tokens(self, slot: int) -> Sequence[int]:
        """Tokens of the last sequence in this slot; empty if there was none."""
        return self._jobs.slots.last[slot]

    def last_scales(self, slot: int) -> tuple[float, ...]:
        """Those of the adapters that this sequence followed."""
        return self._jobs.slots.last_scales[slot]

    def set_last_tokens(
        self, slot: int, tokens: Sequence[int], scales: tuple[float, ...] = ()
    ) -> None:
        """Called in the engine's thread, see `call`."""
        self._jobs.slots.last[slot], self._jobs.slots.last_scales[slot] = tokens, scales

    def check_room(self) -> None:
        """Raises an `UnavailableError` if the server is not ready or its queue is full."""
        if self.state != READY:
            raise unavailable(self)
        if self.n_open - self.n_slots >= self._max_queue:
            self.totals.refused += 1
            raise UnavailableError(
                f"all {self.n_slots} slots are busy and {self._max_queue} requests wait already",
                retry_after=self._retry_after(),
            )

    def submit(self, jobs: Sequence[Job]) -> None:
        self.check_room()
        now = time.perf_counter()
        for job in jobs:
            job.submitted_at = now
        self._n_submitted += len(jobs)
        self._commands.put(lambda: self._jobs.waiting.extend(jobs))

    def cancel(self, jobs: Sequence[Job], reason: str = CANCELLED) -> None:
        """They end with this reason. Does nothing for sequences that have ended."""

        def run() -> None:
            for job in jobs:
                self._jobs.cancel(job, reason, self._engine)

        self._commands.put(run)

    def pause(
        self, job: Job, save: Callable[[SequenceSnapshot], None]
    ) -> concurrent.futures.Future[bool]:
        """See `ActiveJobs.pause`."""
        return self.ask(lambda engine: self._jobs.pause(job, save, engine))

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Returns the result of `function`, which the engine's thread calls between two steps."""
        import asyncio

        return await asyncio.wrap_future(self.ask(function))

    def ask(self, function: Callable[[Engine], T]) -> concurrent.futures.Future[T]:
        """The same, for callers without a loop."""
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                if self.loaded is None:  # unloaded since the command was queued
                    raise unavailable(self)
                answer.set_result(function(self.loaded.engine))
            except Exception as error:  # noqa: BLE001 - raised in the caller
                answer.set_exception(error)

        if self.state in (LOADING, DEAD, SLEEPING):
            raise unavailable(self)
        self._commands.put(run)
        return answer

    def doze(self) -> None:
        """Called in the loop when the server is idle: the engine's thread unloads the model."""

        def run() -> None:
            self._unload_requested = True

        self.state = SLEEPING  # new requests wait in `wake_up`
        self._commands.put(run)

    async def wake_up(self) -> None:
        """Loads a sleeping model again. Raises an `UnavailableError` if that fails."""

        def run() -> None:
            self._is_wanted = True

        while self.state == SLEEPING:
            self._commands.put(run)
            await self._reload_waiters.wait()

    async def drain(self, seconds: float) -> None:
        """Refuses new requests, waits up to `seconds` for open ones, and fails what is left."""
        import asyncio

        if self.state == READY:
            self.state = DRAINING
        end = time.perf_counter() + seconds
        while self.n_open and self.state == DRAINING and time.perf_counter() < end:
            await asyncio.sleep(0.02)
        self._commands.put(self._abort)

    def end_all(self, error: NextnError) -> None:
        """Ends all open sequences with an error."""
        self._commands.put(lambda: self._fail_all(error))

    def stop(self) -> None:
        def run() -> None:
            self._is_stopped = True

        self._commands.put(run)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the engine's."""
        return current_thread() is self._thread

    def join(self, seconds: float) -> bool:
        """Waits for the thread; returns whether it has ended within `seconds`."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Called in another thread after `stop`: waits for the end, and gives the memory back."""
        self._thread.join()
        if self.failure is not None:
            self.failure.__traceback__ = None  # its frames would keep what was loaded
        self._free()
        gc.freeze()  # other models stay

    def _retry_after(self) -> int:
        seconds = self.totals.mean_s * self.n_open / max(self.n_slots, 1)
        return min(max(math.ceil(seconds), 1), _LONGEST_RETRY_S)

    # The engine's thread

    def _run(self) -> None:
        try:
            self._open(self._load())
            while self.loaded is not None:
                self._serve(self.loaded.engine)
                self.loaded.engine.close()
                if self._is_stopped:
                    return
                self._sleep()
        except BaseException as error:  # noqa: BLE001 - fails all requests
            self.failure, self.state = error, DEAD
            self._is_loaded.set()
            self._fail_all()
            self._bridge.run_in_loop(self._on_death)
        finally:
            if self._recorder is not None:
                self._recorder.close()

    @property
    def _engine(self) -> Engine | None:
        return None if self.loaded is None else self.loaded.engine

    def _open(self, loaded: Loaded) -> None:
        if not self.n_slots:
            self._jobs.slots = Slots(loaded.engine.config.sizes.n_slots)
        self.loaded = loaded
        if self._recorder is not None:
            self._jobs.model_id = loaded.runtime.fingerprint
        loaded.engine.disable_drafters_on_error(self._note_drafter)
        if self.state in (LOADING, SLEEPING):
            self.state = READY
        self._is_loaded.set()
        self._bridge.run_in_loop(self._on_change)

    def _sleep(self) -> None:
        """Unloads the model; returns when it is loaded again for a request, or the server ends."""
        self._free()
        self._jobs.slots.forget()
        while self.loaded is None and not self._is_stopped:
            if self._jobs.waiting or self._is_wanted:  # perhaps since before it was unloaded
                self._load_again()
            else:
                self._commands.get()()

    def _free(self) -> None:
        if self.loaded is not None:
            self.loaded.runtime.close()
        self.loaded = None
        gc.unfreeze()
        gc.collect()
        give_back()

    def _load_again(self) -> None:
        self._is_wanted = False
        try:
            self._open(self._load())
        except Exception as error:  # noqa: BLE001 - the next request tries again
            _log.error("the model cannot be loaded again: %s", error)
            self._fail_all(UnavailableError("the model cannot be loaded again"))
            self._bridge.run_in_loop(lambda: self._reload_waiters.release(is_there=False))
        else:
            give_back()  # memory that only loading needed
            self._bridge.run_in_loop(lambda: self._reload_waiters.release(is_there=True))

    def _on_death(self) -> None:
        """Called in the loop after the thread has failed: fails requests submitted meanwhile."""
        self._fail_all()
        self._reload_waiters.release(is_there=False)
        self._on_change()

    def _serve(self, engine: Engine) -> None:
        while not self._is_stopped:
            self._listen(is_idle=not (engine.has_work or self._jobs.waiting))
            if self._unload_requested:
                self._unload_requested = False
                return
            if self._jobs.waiting:
                self._jobs.admit(engine)
            if engine.has_work:
                self._step(engine)
            if self._bridge.is_due:
                self._bridge.wake()

    def _listen(self, *, is_idle: bool) -> None:
        commands = self._commands
        if is_idle:
            commands.get()()
        # Those that are there: a caller that at once asks for more waits for a step in between.
        for _ in range(min(commands.qsize(), _COMMANDS)):
            if commands.empty():  # the end of the server has run the others
                return
            commands.get()()

    def _step(self, engine: Engine) -> None:
        try:
            events = engine.step()
        except Exception as error:
            self._jobs.fault = error
            self._n_failures += 1
            self.totals.failed_steps += 1
            _log.error("a step failed: %r", error, exc_info=_log.isEnabledFor(DEBUG))
            if self._n_failures >= MAX_FAILURES or isinstance(error, DeviceError):
                raise
            return
        if self._n_failures and any(event.token != NO_TOKEN for event in events):
            self._n_failures = 0
        self.totals.steps += 1
        self.totals.busy += self.n_running
        n_ended = self._jobs.n_ended
        self._jobs.deliver(engine, events)
        if self._jobs.n_ended != n_ended:
            self._note_idle_drafters()

    def _note_idle_drafters(self) -> None:
        """Says of each once in the log why the policy does without it."""
        if self.loaded is None or self.totals.steps < _JUDGED_AFTER:
            return
        totals, runtime = self.totals, self.loaded.runtime
        self.idle_drafters = runtime.idle_drafters(totals.steps, totals.by_source)
        for name, reason in self.idle_drafters.items():
            if name not in self._named_idle:
                self._named_idle.add(name)
                _log.warning("the drafter %s is idle: %s", name, reason)

    def _note_drafter(self, error: Exception) -> None:
        self.totals.drafter_failures += 1
        _log.warning("a drafter failed: %r", error, exc_info=_log.isEnabledFor(DEBUG))

    def _abort(self) -> None:
        """Fails all requests when the server ends."""
        self._fail_all(UnavailableError("the server is shutting down"))

    def _fail_all(self, error: NextnError | None = None) -> None:
        error = error or EngineError(f"the engine has failed: {type(self.failure).__name__}")
        while not self._commands.empty():  # a request may have been submitted meanwhile
            self._commands.get()()
        self._jobs.end_all(error, None if self.state == DEAD else self._engine)
        self._bridge.wake()


def unavailable(worker: Worker) -> UnavailableError:
    match worker.state:
        case "loading":
            return UnavailableError("Loading model", retry_after=1)
        case "sleeping":
            return UnavailableError("the model sleeps: it is loaded again", retry_after=1)
        case "draining":
            return UnavailableError("the server is shutting down", retry_after=5)
    return UnavailableError("the engine has failed; the server is going down", retry_after=5)
