"""`ModelPool`: the models of a server, and which of them are in memory.

A model is loaded for the first request that names it. If there is no room, the one that was used
least recently makes some, unless it answers requests or is pinned; requests wait for room in the
order in which their models were first asked for. All methods run in the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Final

from msgspec import Struct
from starlette.types import Receive

from ...state.host_memory import available_memory
from ...worker.worker import LOADING, READY
from ..about import described
from ..api_errors import ApiError
from ..loading import size_line
from ..response_store import ResponseStore
from .model_events import ALL_MODELS, ModelEvents, wait_for_disconnect
from .named_models import find_named
from .routed_model import LOADED, UNLOADED, UNLOADING, HangUp, LoadError, ModelPlan, RoutedModel

_log: Final = logging.getLogger(__name__)
_MIB: Final = 1 << 20
_WEIGHTS: Final = "text_model"  # llama-server's word for a stage of a load


class PoolSettings(Struct, frozen=True):
    n_models: int = 4  # in memory; 0: any number
    autoloads: bool = True  # a request loads the model that it names
    n_bytes: int | None = None  # of all together; None: what the machine has
    max_queue: int = 512  # requests that may wait for models
    queue_s: float = 600.0  # how long they may


def _ignore(_line: str) -> None:
    pass


class ModelPool:
    def __init__(
        self, plans: Iterable[ModelPlan], settings: PoolSettings, hang_up: HangUp,
        note: Callable[[str], None] = _ignore,
    ) -> None:  # fmt: skip
        self.events = ModelEvents()
        self.models = {plan.name: RoutedModel(plan, self._on_status) for plan in plans}
        self.settings, self.is_draining = settings, False
        self._hang_up, self._note = hang_up, note
        self._queue: deque[RoutedModel] = deque()  # not in memory, but asked for
        self._uses = count(1)
        self.responses = ResponseStore()  # of all models: chats go on with another one
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> list[RoutedModel]:
        """Those that take memory."""
        return [each for each in self.models.values() if each.state != UNLOADED]

    def find(self, name: str) -> RoutedModel | None:
        """Returns the model of a name or alias, also as Ollama's clients write it; of a repository
        without a quantisation that which `-hf` would choose."""
        found = self.models.get(name)
        if found is None:
            by_name = {
                each: model
                for model in self.models.values()
                for each in (*model.plan.aliases, model.name)
            }
            found = find_named(by_name, name)
        return found

    @asynccontextmanager
    async def use(self, model: RoutedModel, receive: Receive) -> AsyncIterator[None]:
        """Inside, the model is in memory and stays there. `receive`: says when the client leaves,
        who gives up a place in the queue by that."""
        if model.state != LOADED:
            self._check_queue()
        model.n_waiting += 1
        try:
            while model.state != LOADED:
                await self._wait(model, receive)
        finally:
            model.n_waiting -= 1
            self._forget_unwanted()
        model.n_running += 1
        model.used_at = next(self._uses)
        try:
            yield
        finally:
            model.used_at = next(self._uses)
            model.end_use()
            self._advance()

    def load(self, model: RoutedModel) -> None:
        """Has it loaded as soon as there is room."""
        self._check_open()
        model.is_wanted = True
        self._enqueue(model)

    def unload(self, model: RoutedModel) -> None:
        """Called with a loaded model: requests that it answers end first."""
        model.state = UNLOADING  # what comes now waits until it is loaded again
        self._run(self._unload(model))

    async def remove(self, model: RoutedModel) -> None:
        """Returns when it is no longer in memory, nor in the list."""
        model.is_removed = model.is_deleted = True
        if model.state == LOADED:
            self.unload(model)
        elif model.state == UNLOADED:
            self._remove(model)
        while self.models.get(model.name) is model:
            with suppress(ApiError):
                await model.waiter()

    def replace_plans(self, plans: Iterable[ModelPlan]) -> None:
        """The models are these from now on; those that are gone or have changed are unloaded."""
        wanted = {plan.name: plan for plan in plans}
        for name, model in list(self.models.items()):
            plan = wanted.get(name)
            if plan is None:
                model.is_removed = True
                if model.state == UNLOADED:
                    self._remove(model)
                continue
            if plan.flags != model.plan.flags:
                model.n_bytes = plan.n_bytes
                model.is_outdated = model.state != UNLOADED
            model.plan, model.is_removed = plan, model.is_deleted
        for model in self.running:
            if model.state == LOADED and (model.is_removed or model.is_outdated):
                self.unload(model)
        for name, plan in wanted.items():
            self.models.setdefault(name, RoutedModel(plan, self._on_status))
        self.events.send(ALL_MODELS, "models_reload")

    def end_waiting(self, error: ApiError) -> None:
        """Nothing is loaded any more."""
        self.is_draining = True
        self._queue.clear()
        for model in self.models.values():
            model.release(error)

    # Waiting

    def _check_queue(self) -> None:
        n = sum(model.n_waiting for model in self.models.values())
        if n >= self.settings.max_queue:
            raise ApiError(503, f"{n} requests wait for models already", retry_after=5)

    def _check_open(self) -> None:
        if self.is_draining:
            raise ApiError(503, "the server is shutting down", retry_after=5)

    def _enqueue(self, model: RoutedModel) -> None:
        if model.state in (UNLOADED, UNLOADING) and model not in self._queue:
            self._queue.append(model)
        self._advance()

    def _forget_unwanted(self) -> None:
        wanted = [each for each in self._queue if each.n_waiting or each.is_wanted]
        if len(wanted) != len(self._queue):
            self._queue = deque(wanted)
            self._advance()

    async def _wait(self, model: RoutedModel, receive: Receive) -> None:
        self._check_open()
        waiter = model.waiter()
        self._enqueue(model)
        departure = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            done, _ = await asyncio.wait(
                (waiter, departure),
                timeout=self.settings.queue_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            departure.cancel()
        if waiter in done:
            waiter.result()
            return
        waiter.cancel()
        if done:
            raise ApiError(400, "the client left before the model was loaded")
        raise ApiError(503, f"there was no room for the model {model.name}", retry_after=60)

    # Room

    def _advance(self) -> None:
        """Loads what is asked for, as far as there is room."""
        while self._queue:
            model = self._queue[0]
            try:
                if not self._make_room(model):
                    return
            except ApiError as error:
                self._queue.popleft()
                model.fail(error)
                continue
            self._queue.popleft()
            model.state = LOADING
            self._run(self._load(model))

    def _make_room(self, model: RoutedModel) -> bool:
        """Returns whether it may be loaded now. If not, that changes when another model has left
        or answered its requests; an `ApiError` if it never does."""
        if model.state == UNLOADING:
            return False
        running = self.running
        lack = self._lack(model, running)
        if not lack:
            return True
        if any(each.state == UNLOADING for each in running):
            return False
        if (victim := self._least_recent()) is not None:
            self.unload(victim)
            return False
        if any(not each.plan.is_pinned for each in running):
            return False
        if lack == "memory" and self.settings.n_bytes is None:
            return True  # an estimate: loading it says what is missing
        raise ApiError(400, f"there is no room for the model {model.name}: {lack}")

    def _lack(self, model: RoutedModel, running: list[RoutedModel]) -> str:
        """What stands against one more model; "" if nothing does."""
        limits, need = self.settings, model.n_bytes
        if limits.n_models and len(running) >= limits.n_models:
            return f"all models that --models-max {limits.n_models} permits are pinned"
        if limits.n_bytes is not None:
            taken = sum(each.n_bytes for each in running)
            if taken + need <= limits.n_bytes:
                return ""
            return (
                f"it takes {need // _MIB} MiB, pinned models take {taken // _MIB} MiB, and "
                f"--models-memory is {limits.n_bytes // _MIB}"
            )
        free = available_memory()
        loading = sum(each.n_bytes for each in running if each.state == LOADING)
        return "memory" if running and free is not None and need > free - loading else ""

    def _least_recent(self) -> RoutedModel | None:
        """Returns the one that makes room, if one can."""
        idle = [
            each
            for each in self.running
            if each.state == LOADED and not each.is_busy and not each.plan.is_pinned
        ]
        return min(idle, key=lambda each: each.used_at, default=None)

    # Loading

    async def _load(self, model: RoutedModel) -> None:
        self._note(f"loading    {model.name}")
        try:
            await self._load_with_room(model)
        except Exception as error:  # noqa: BLE001 - its requests get it, others go on
            model.failure = str(error) if isinstance(error, LoadError) else repr(error)
            _log.error("the model %s cannot be loaded: %s", model.name, model.failure)
            text = f"the model {model.name} cannot be loaded: {model.failure}"
            model.fail(ApiError(500, text))
        else:
            model.is_wanted, model.used_at = False, next(self._uses)
            size, loaded = model.n_bytes / (1 << 30), model.running.loaded
            self._note(f"loaded     {model.name} ({size:.2f} GiB, {size_line(loaded)})")
        if model.state == LOADED and (model.is_removed or model.is_outdated):
            self.unload(model)
        elif model.is_removed:
            self._remove(model)
        self._trim(model)
        self._advance()

    async def _load_with_room(self, model: RoutedModel) -> None:
        """If memory turns out to be short, others leave, one after the other."""
        while True:
            try:
                await model.load(self._hang_up, self._on_death, self.responses)
            except LoadError as error:
                victim = self._least_recent()
                if not error.is_short_of_memory or victim is None:
                    raise
                victim.state = UNLOADING
                await self._unload(victim)
            else:
                return

    def _trim(self, newest: RoutedModel) -> None:
        """Keeps to the memory limit, now that the size of the newest is known."""
        limit = self.settings.n_bytes
        while limit is not None:
            staying = [each for each in self.running if each.state != UNLOADING]
            victim = self._least_recent()
            if sum(each.n_bytes for each in staying) <= limit or victim in (None, newest):
                return
            assert victim is not None, "checked"
            self.unload(victim)

    async def _unload(self, model: RoutedModel) -> None:
        try:
            await model.unload()
        except Exception as error:  # noqa: BLE001 - others go on
            _log.error("the model %s was unloaded with an error: %r", model.name, error)
        self._note(f"unloaded   {model.name}")
        if model.is_removed:
            self._remove(model)
        self._advance()

    def _on_death(self, model: RoutedModel) -> None:
        """Its requests have ended with an error. The next one loads it again."""
        _log.error("the model %s: %s", model.name, model.failure)
        self.unload(model)

    def _on_status(self, model: RoutedModel) -> None:
        data: dict[str, Any] = {"status": model.status}
        if model.loaded_share and model.status == LOADING:
            share = {"current": _WEIGHTS, "value": model.loaded_share}
            data["progress"] = {"stages": [_WEIGHTS], **share}
        if model.status == UNLOADED and model.failure:
            data |= {"failed": True, "exit_code": 1, "error": model.failure}
        if model.status == LOADED and model.running.worker.state == READY:  # not if it wakes up
            data["info"] = described(model.running, (model.name, *model.plan.aliases))
        self.events.send(model.name, "model_status", data)

    def _remove(self, model: RoutedModel) -> None:
        if self.models.get(model.name) is model:
            del self.models[model.name]
        model.fail(ApiError(400, f"model '{model.name:.80}' not found"))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Holds a reference to the task: the loop itself keeps weak ones only."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
