"""`Worker`: the thread that owns the engine. Requests go in as works, events come out in mailboxes.

The loop's thread never waits for the engine, nor the engine for a client: commands cross in a
queue, and the events of a whole step cross with one wake-up of the loop, or none if one is due.
Before the next step it has a moment to pass them on; sending is never waited for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import DEBUG
from queue import SimpleQueue
from threading import Event as ThreadEvent
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

from ..errors import DeviceError, SpecdecError
from ..generation import CANCELLED, ERROR, LIMIT, NO_TOKEN, Event
from ..state.host_memory import give_back
from .errors import ApiError, EngineError, UnavailableError
from .lanes import Lanes
from .mailbox import Mailbox, Ping, Progress
from .totals import Totals
from .wakers import Wakers
from .work import Work

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..runtime import Runtime
    from ..tokenizer import ChatTemplate

LOADING, READY, DRAINING, DEAD = "loading", "ready", "draining", "dead"
SLEEPING = "sleeping"  # the model is not in memory, or is being loaded again
MAX_FAILURES: Final = 3  # steps in a row: after that the engine counts as dead
# Where the model's threads use all cores, the loop would be served last by the system, and stop
# them in the middle of a step. So it has the machine first, for as long as it usually takes.
HAND_OVER_S: Final = 0.002
_COMMANDS: Final = 64  # between two steps, so that a burst does not stop those who are writing
_LONGEST_RETRY_S: Final = 60
_log: Final = logging.getLogger(__name__)
T = TypeVar("T")


def _unwatched(_tell: Callable[[Callable[[], None]], None]) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the engine's thread serves."""

    runtime: Runtime
    engine: Engine
    template: ChatTemplate | None = None
    # Told what raises it when a device is lost while nobody asks for anything.
    watch: Callable[[Callable[[Callable[[], None]], None]], None] = _unwatched


class Worker:
    """Methods are for the loop's thread; those with an underscore mostly for the engine's."""

    def __init__(
        self, load: Callable[[], Loaded], *, max_queue: int = 512, queue_s: float = 600.0
    ) -> None:
        self.totals = Totals()
        self.state = LOADING
        self.failure: BaseException | None = None  # why it is dead
        self.loaded: Loaded | None = None
        self._lanes = Lanes(0)
        self._load, self._max_queue, self._queue_s = load, max_queue, queue_s
        self.loop: asyncio.AbstractEventLoop | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Work] = deque()
        self._running: dict[int, Work] = {}  # by `Sequence.id`
        self._touched: dict[Mailbox, None] = {}  # in this step
        self._to_wake: deque[Mailbox] = deque()
        self._is_wake_due = self._is_stopped = False
        self._n_submitted = self._n_ended = 0  # each written by one thread
        self._is_told = ThreadEvent()
        self._n_failures = 0
        self._fault: Exception | None = None  # of the last step
        self._is_tired = self._is_wanted = False
        self._wakers = Wakers()

    def begin(self) -> None:
        """Load, in any thread; what takes as long can be done meanwhile."""
        if self._thread.ident is None:
            self._thread.start()

    def start(self, on_change: Callable[[], None]) -> None:
        """In the loop, where `on_change` is called when `state` has changed by itself; perhaps
        twice for the same change."""
        self.loop, self._on_change = asyncio.get_running_loop(), on_change
        self.begin()
        if self.state != LOADING:
            self.loop.call_soon(on_change)

    @property
    def n_open(self) -> int:
        """Texts that wait or are being written."""
        return self._n_submitted - self._n_ended

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def lanes(self) -> list[Work | None]:
        """Who is being written, by `id_slot`."""
        return self._lanes.works

    @property
    def n_slots(self) -> int:
        return len(self.lanes)

    def last_text(self, lane: int) -> Sequence[int]:
        """Tokens of the text that was written there; empty if there was none."""
        return self._lanes.last[lane]

    def set_last_text(self, lane: int, tokens: Sequence[int]) -> None:
        """In the engine's thread, see `call`."""
        self._lanes.last[lane] = tokens

    def check_room(self) -> None:
        """Refused if another request may not even wait."""
        if self.state != READY:
            raise unavailable(self)
        if self.n_open - self.n_slots >= self._max_queue:
            self.totals.refused += 1
            raise ApiError(
                503,
                f"all {self.n_slots} slots are busy and {self._max_queue} requests wait already",
                retry_after=self._retry_after(),
            )

    def submit(self, works: Sequence[Work]) -> None:
        self.check_room()
        now = time.perf_counter()
        for work in works:
            work.submitted_at = now
        self._n_submitted += len(works)
        self._commands.put(lambda: self._waiting.extend(works))

    def cancel(self, works: Sequence[Work]) -> None:
        """Those that have ended do not mind."""

        def run() -> None:
            for work in works:
                self._cancel(work, CANCELLED)

        self._commands.put(run)

    async def call(self, function: Callable[[Engine], T]) -> T:
        """The result of `function`, which the engine's thread calls between two steps."""
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                if self.loaded is None:  # it has just fallen asleep
                    raise unavailable(self)
                answer.set_result(function(self.loaded.engine))
            except Exception as error:  # noqa: BLE001 - handed over to who asked
                answer.set_exception(error)

        if self.state in (LOADING, DEAD, SLEEPING):
            raise unavailable(self)
        self._commands.put(run)
        return await asyncio.wrap_future(answer)

    def doze(self) -> None:
        """In the loop, when nobody wants anything: give the model's memory back."""

        def run() -> None:
            self._is_tired = True

        self.state = SLEEPING  # who comes now waits
        self._commands.put(run)

    async def wake_up(self) -> None:
        """Until the model is there, if it slept; refused if it cannot be loaded again."""

        def run() -> None:
            self._is_wanted = True

        while self.state == SLEEPING:
            self._commands.put(run)
            await self._wakers.wait()

    async def drain(self, seconds: float) -> None:
        """Take nothing new, and let what is under way end; what then remains is ended."""
        if self.state == READY:
            self.state = DRAINING
        end = time.perf_counter() + seconds
        while self.n_open and self.state == DRAINING and time.perf_counter() < end:
            await asyncio.sleep(0.02)
        self._commands.put(self._abort)

    def stop(self) -> None:
        def run() -> None:
            self._is_stopped = True

        self._commands.put(run)

    def join(self, seconds: float) -> bool:
        """Whether the thread has ended in time."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

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
        except BaseException as error:  # noqa: BLE001 - a thread's last words
            self.failure, self.state = error, DEAD
            self._fail_all()
            self._in_loop(self._bury)

    def _open(self, loaded: Loaded) -> None:
        if not self._lanes.works:
            self._lanes = Lanes(loaded.engine.config.sizes.n_slots)
        self.loaded = loaded
        loaded.engine.forgive_drafters(self._note_drafter)
        loaded.watch(self._commands.put)
        if self.state in (LOADING, SLEEPING):
            self.state = READY
        self._in_loop(self._on_change)

    def _sleep(self) -> None:
        """Until somebody wants something and the model is there again, or the server ends."""
        if self.loaded is not None:
            self.loaded.runtime.close()
        self.loaded = None
        self._lanes.forget()
        gc.unfreeze()
        gc.collect()
        give_back()
        while self.loaded is None and not self._is_stopped:
            self._commands.get()()
            if self._waiting or self._is_wanted:
                self._load_again()

    def _load_again(self) -> None:
        self._is_wanted = False
        try:
            self._open(self._load())
        except Exception as error:  # noqa: BLE001 - its file may come back
            _log.error("the model cannot be loaded again: %s", error)
            self._fail_all(UnavailableError("the model cannot be loaded again"))
            self._in_loop(lambda: self._wakers.tell(is_there=False))
        else:
            give_back()  # what was needed for loading only
            self._in_loop(lambda: self._wakers.tell(is_there=True))

    def _bury(self) -> None:
        """In the loop, when the thread has ended: who was submitted at the last moment."""
        self._fail_all()
        self._wakers.tell(is_there=False)
        self._on_change()

    def _serve(self, engine: Engine) -> None:
        while not self._is_stopped:
            self._listen(is_idle=not (engine.has_work or self._waiting))
            if self._is_tired:
                self._is_tired = False
                return
            if self._waiting:
                self._admit(engine)
            if engine.has_work:
                self._step(engine)
            if self._touched:
                self._wake()

    def _listen(self, *, is_idle: bool) -> None:
        commands = self._commands
        if is_idle:
            commands.get()()
        for _ in range(_COMMANDS):
            if commands.empty():
                return
            commands.get()()

    def _admit(self, engine: Engine) -> None:
        while (found := self._next_work()) is not None:
            work, lane = found
            now = time.perf_counter()
            if now - work.submitted_at > self._queue_s:
                self._refuse(work, UnavailableError("the request waited too long for its turn"))
                continue
            try:
                sequence = engine.add(
                    work.prompt, work.params, index=work.index, sampler=work.sampler
                )
            except SpecdecError as error:
                self._refuse(work, error)
                continue
            work.sequence, work.began_at = sequence, now
            self._running[sequence.id] = work
            self._lanes.enter(lane, work)
            self.totals.queued.add(now - work.submitted_at)

    def _next_work(self) -> tuple[Work, int] | None:
        """The first in line, and its slot. Who wants a certain slot that is busy lets others go
        first."""
        if len(self._running) >= len(self.lanes):
            return None
        for i, work in enumerate(self._waiting):
            lane = self._lanes.find(work)
            if lane is not None:
                del self._waiting[i]
                return work, lane
        return None

    def _step(self, engine: Engine) -> None:
        try:
            events = engine.step()
        except Exception as error:
            self._fault = error
            self._n_failures += 1
            self.totals.failed_steps += 1
            _log.error("a step failed: %r", error, exc_info=_log.isEnabledFor(DEBUG))
            if self._n_failures >= MAX_FAILURES or isinstance(error, DeviceError):
                raise
            return
        if self._n_failures and any(event.token != NO_TOKEN for event in events):
            self._n_failures = 0
        self.totals.steps += 1
        self.totals.busy += len(self._running)
        self._deliver(engine, events)

    def _note_drafter(self, error: Exception) -> None:
        self.totals.drafter_failures += 1
        _log.warning("a drafter failed: %r", error, exc_info=_log.isEnabledFor(DEBUG))

    def _deliver(self, engine: Engine, events: Sequence[Event]) -> None:
        now = time.perf_counter()
        running, touched = self._running, self._touched
        n_tokens: dict[Work, int] = {}
        for event in events:
            work = running.get(event.sequence)
            if work is None:
                continue
            if event.stop_reason is not None:
                event = self._end(work, event, now)
            if event.token != NO_TOKEN:
                n_tokens[work] = n_tokens.get(work, 0) + 1
            if work.max_ms and "\n" in event.text:
                work.has_new_line = True
            work.mailbox.put(work.place, event)
            if work.is_followed or event.stop_reason is not None:
                touched[work.mailbox] = None
        for work, n in n_tokens.items():
            if work.first_at:
                self.totals.between_tokens.add((now - work.last_at) / n, n)
            else:
                work.first_at = now
                self.totals.first_token.add(now - work.submitted_at)
            work.last_at = now
            if work.max_ms and work.has_new_line and 1000 * (now - work.first_at) > work.max_ms:
                work.is_late = True
                self._cancel(work, LIMIT)
        for work in running.values():
            if work.reports and not work.first_at:
                self._report(work, now)

    def _report(self, work: Work, now: float) -> None:
        sequence = work.sequence
        if sequence is not None and sequence.state is not None:
            n, cached = sequence.state.n_cells, sequence.stats.cached_n
            ms = 1000 * (now - work.began_at)
            work.mailbox.put(work.place, Progress(sequence.n_prompt, cached, n, ms))
            self._touched[work.mailbox] = None

    def _end(self, work: Work, event: Event, now: float) -> Event:
        """A text has ended; what its request is told."""
        sequence = work.sequence
        assert sequence is not None, "it has been written"
        del self._running[sequence.id]
        self._lanes.leave(work)
        self._n_ended += 1
        if event.stop_reason == CANCELLED and not work.is_cancelled:
            fault = self._fault
            reason = "" if fault is None else f": {type(fault).__name__}"
            error = EngineError(f"the engine failed while it wrote this text{reason}")
            event = event._replace(stop_reason=ERROR, error=error)
        self.totals.add(sequence.stats, len(sequence.tokens), event.stop_reason or "")
        self.totals.whole.add(now - work.submitted_at)
        return event

    def _cancel(self, work: Work, reason: str, error: SpecdecError | None = None) -> None:
        if work.sequence is None:
            if work in self._waiting:
                self._waiting.remove(work)
                self._refuse(work, error, reason)
        elif work.sequence.id in self._running and not work.is_cancelled:
            assert self.loaded is not None, "something runs"
            work.is_cancelled = True
            self.loaded.engine.cancel(work.sequence, reason)

    def _refuse(self, work: Work, error: SpecdecError | None, reason: str = ERROR) -> None:
        """It ends before it began."""
        work.mailbox.put(work.place, Event(NO_TOKEN, "", stop_reason=reason, error=error))
        self._touched[work.mailbox] = None
        self._n_ended += 1
        self.totals.ended[reason] = self.totals.ended.get(reason, 0) + 1

    def _abort(self) -> None:
        """The end of the server: nobody is left without a last word."""
        self._fail_all(UnavailableError("the server is shutting down"))

    def _fail_all(self, told: SpecdecError | None = None) -> None:
        told = told or EngineError(f"the engine has failed: {type(self.failure).__name__}")
        while not self._commands.empty():  # somebody may have been submitted meanwhile
            self._commands.get()()
        for work in [*self._running.values(), *self._waiting]:
            if work.sequence is not None:
                work.is_cancelled = True
                self._running.pop(work.sequence.id, None)
                self._lanes.leave(work)
                if self.loaded is not None and self.state != DEAD:
                    self.loaded.engine.cancel(work.sequence)
            self._refuse(work, told)
        self._waiting.clear()
        self._wake()

    # Between the threads

    def _wake(self) -> None:
        self._to_wake.extend(self._touched)
        self._touched.clear()
        if not self._is_wake_due:
            self._is_wake_due = True
            self._is_told.clear()
            self._in_loop(self._wake_all)
        self._is_told.wait(HAND_OVER_S)

    def _wake_all(self) -> None:
        self._is_wake_due = False  # before looking, or what comes meanwhile would be missed
        while self._to_wake:
            self._to_wake.popleft().wake()
        if self.loop is not None:
            self.loop.call_soon(self._told)  # behind those who were woken

    def _told(self) -> None:
        self._is_told.set()

    def _in_loop(self, function: Callable[[], None]) -> None:
        if self.loop is None:  # nobody listens yet; `start` will look
            return
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            self._to_wake.clear()


def ping(mailbox: Mailbox, place: int) -> None:
    mailbox.put(place, Ping())
    mailbox.wake()


def unavailable(worker: Worker) -> ApiError:
    match worker.state:
        case "loading":
            return ApiError(503, "Loading model", retry_after=1)
        case "sleeping":
            return ApiError(503, "the model sleeps: it is loaded again", retry_after=1)
        case "draining":
            return ApiError(503, "the server is shutting down", retry_after=5)
    return ApiError(503, "the engine has failed; the server is going down", retry_after=5)
