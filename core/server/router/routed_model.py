"""`RoutedModel`: one of several models of a server, loaded or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ...errors import NextnError, UnavailableError
from ...models.model_weights import LOADING_WEIGHTS
from ...worker.worker import DEAD, LOADING, SLEEPING, Loaded, Worker
from ..api_errors import ApiError
from ..loading import worker_for
from ..request_log import log_speculation
from ..response_store import ResponseStore
from ..routes import unguarded_app
from ..service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ..settings import ServerSettings

UNLOADED, LOADED, UNLOADING = "unloaded", "loaded", "unloading"
_LAST_EVENTS_S: Final = 0.3  # for the errors of requests that an unloading ends
HangUp = Callable[[object], None]
Report = Callable[[str, float], None]  # stage, and the fraction of it that is done
Opened = tuple["ServerSettings", Callable[[Report], Loaded]]  # how it is served, and what loads it


class LoadError(NextnError):
    """One line that says why a model cannot be loaded."""

    def __init__(self, line: str, *, is_short_of_memory: bool = False) -> None:
        super().__init__(line)
        self.is_short_of_memory = is_short_of_memory


class ModelPlan(Struct, frozen=True, kw_only=True):
    """What is known of a model before it is loaded."""

    name: str
    source: str  # models_dir, preset or cache, that of the hub
    open: Callable[[], Opened]  # called in another thread; it and what it returns raise `LoadError`
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # what it is loaded with: other flags make another model
    preset: str = ""  # its section
    n_bytes: int = 0  # of its files; 0: unknown
    is_hidden: bool = False  # from lists; requests may name it
    is_pinned: bool = False  # never unloaded for another one
    loads_at_start: bool = False
    stop_s: float = 30.0  # how long open requests may take when it is unloaded


class RoutedModel:
    """All methods run in the loop."""

    def __init__(
        self, plan: ModelPlan, on_status: Callable[[RoutedModel], None] = lambda _model: None
    ) -> None:
        """`on_status`: called after each change of `status` and `loaded_share`."""
        self.plan, self._state, self.failure = plan, UNLOADED, ""
        self.loaded_share = 0.0  # of its weights, while it is loaded
        self._on_status, self._last_status = on_status, UNLOADED
        self.n_bytes = plan.n_bytes  # that it takes in memory, an estimate until it was loaded
        self.n_running = self.n_waiting = 0  # requests that it answers, and that wait for it
        self.is_wanted = False  # also without a request
        self.is_removed = self.is_outdated = False  # by a newer list of models
        self.is_deleted = False  # by a request: it does not come back with the next list
        self.used_at = 0  # a count of uses
        self.worker: Worker | None = None  # from the beginning of a load on
        self.service: Service | None = None
        self.app: ASGIApp | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._is_idle = asyncio.Event()

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def state(self) -> str:
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._state = state
        self._notify()

    @property
    def status(self) -> str:
        """`state`, or that it sleeps (`--sleep-idle-seconds`)."""
        is_asleep = self.service is not None and self.service.worker.state == SLEEPING
        return SLEEPING if self.state == LOADED and is_asleep else self.state

    @property
    def is_up(self) -> bool:
        """Whether it can be asked about itself."""
        return (
            self.state == LOADED and self.service is not None and self.service.worker.state != DEAD
        )

    @property
    def running(self) -> Service:
        """Of a model that is in memory."""
        assert self.service is not None, f"{self.name} is {self.state}"
        return self.service

    @property
    def is_busy(self) -> bool:
        return bool(self.n_running or self.n_waiting)

    async def load(
        self, hang_up: HangUp, on_death: Callable[[RoutedModel], None], responses: ResponseStore
    ) -> None:
        """Raises a `LoadError`."""
        self.loaded_share, self.is_outdated, self.state = 0.0, False, LOADING
        settings, load = await asyncio.to_thread(self.plan.open)
        progress = _WeightsProgress(self)
        worker = worker_for(lambda: load(progress.report), settings)
        self.worker = worker
        changed = asyncio.Event()

        def on_change() -> None:
            changed.set()
            self._notify()
            if worker.state == DEAD and self.state == LOADED:
                self.failure = f"the engine has failed: {worker.failure!r}"
                on_death(self)

        worker.start(on_change)
        while worker.state == LOADING:
            await changed.wait()
            changed.clear()
        if worker.failure is not None:
            self.worker = None
            await asyncio.to_thread(worker.close)
            raise worker.failure
        self.service = Service(settings, worker, hang_up=hang_up, responses=responses)
        self.app, self.failure = unguarded_app(self.service), ""
        if worker.loaded is not None:
            self.n_bytes = worker.loaded.n_bytes
        self.state = LOADED
        self.release(None)

    def set_loaded_share(self, share: float) -> None:
        if self.state == LOADING:  # not when it wakes up
            self.loaded_share = share
            self._on_status(self)

    async def unload(self) -> None:
        """Requests that came before have `stop_s` to end; then they end with an error."""
        self.state = UNLOADING
        await self._wait_until_idle(self.plan.stop_s)
        service = self.running
        if self.n_running:
            error = UnavailableError(f"the model {self.name} has been unloaded")
            service.worker.end_all(error)
            for each in list(service.under_way):
                each.give_up(error)
            await self._wait_until_idle(_LAST_EVENTS_S)
            for each in list(service.under_way):  # clients that do not read
                service.hang_up(each.client)
        log_speculation(service.speculation)
        service.worker.stop()
        try:
            await asyncio.to_thread(service.worker.close)
        finally:
            self.worker = self.service = self.app = None
            self.state = UNLOADED

    def fail(self, error: ApiError) -> None:
        """It is not loaded: the requests that wait for it end with this error."""
        self.state, self.is_wanted = UNLOADED, False
        self.release(error)

    def waiter(self) -> asyncio.Future[None]:
        """Done when it is loaded, or cannot be."""
        found = asyncio.get_running_loop().create_future()
        self._waiters.append(found)
        return found

    def end_use(self) -> None:
        """One request less is answered."""
        self.n_running -= 1
        if not self.n_running:
            self._is_idle.set()

    def _notify(self) -> None:
        if self.status != self._last_status:
            self._last_status = self.status
            self._on_status(self)

    async def _wait_until_idle(self, seconds: float) -> None:
        self._is_idle.clear()
        if self.n_running:
            try:
                await asyncio.wait_for(self._is_idle.wait(), seconds)
            except TimeoutError:
                return

    def release(self, error: ApiError | None) -> None:
        """Ends the waits for it, with the error if there is one."""
        waiters, self._waiters = self._waiters, []
        for each in waiters:
            if each.done():
                continue
            if error is None:
                each.set_result(None)
            else:
                each.set_exception(error)


class _WeightsProgress:
    """Takes what the thread that loads a model reports to the loop, in steps of a hundredth."""

    def __init__(self, model: RoutedModel) -> None:
        self._model, self._loop, self._percent = model, asyncio.get_running_loop(), 0

    def report(self, stage: str, share: float) -> None:
        percent = int(100 * share)
        if stage == LOADING_WEIGHTS and percent > self._percent:
            self._percent = percent
            with suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._model.set_loaded_share, share)
