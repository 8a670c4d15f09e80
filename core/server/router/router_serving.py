"""`RouterServing`: a server of several models, from its sockets to its end."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

from ..api_errors import ApiError
from ..request_log import RequestLog, log_speculation
from ..serving import Listening, end_requests, keep_alive
from ..settings import ServerSettings
from .downloads import Downloads, HubAccess
from .model_pool import ModelPool, PoolSettings
from .routed_model import LOADED, ModelPlan
from .router_app import RouterApp

# While a model loads, its thread may keep the interpreter for so long from steps of others.
_SWITCH_S: Final = 0.0005


class RouterServing(Listening):
    def __init__(
        self, read_plans: Callable[[], Sequence[ModelPlan]], pool: PoolSettings,
        settings: ServerSettings, socks: Sequence[socket.socket],
        access: HubAccess,
        note: Callable[[str], None] = lambda _line: None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.pool = ModelPool(read_plans(), pool, self._hang_up, note)
        self._router = RouterApp(self.pool, settings, read_plans, access, note)
        self._on_ready = on_ready
        self.loop: asyncio.AbstractEventLoop | None = None
        super().__init__(settings, socks)

    @property
    def downloads(self) -> Downloads:
        return self._router.downloads

    def _app(self) -> RequestLog:
        return self._router.app()

    def _begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        sys.setswitchinterval(_SWITCH_S)
        for model in self.pool.models.values():
            if model.plan.loads_at_start:
                self.pool.load(model)
        self._on_ready()

    def _code(self) -> int:
        return 0

    async def _finish(self) -> None:
        self.pool.end_waiting(ApiError(503, "the server is shutting down", retry_after=5))
        self.downloads.end()
        self.pool.events.end()
        running = [each for each in self.pool.running if each.service is not None]
        await asyncio.gather(*(end_requests(each.running) for each in running))
        for each in running:
            log_speculation(each.running.speculation)

    def close(self, seconds: float) -> bool:
        """Called after `run`. Returns whether all threads have ended."""
        ended = self.downloads.have_ended
        for model in self.pool.running:
            worker = model.worker
            if worker is not None:
                worker.stop()
            if worker is None or not worker.join(seconds):  # its thread cannot be stopped
                ended = False
            elif worker.loaded is not None:
                worker.loaded.runtime.close()
        return ended

    def _look_after(self, now: float) -> None:
        for model in self.pool.models.values():
            if model.state == LOADED:
                keep_alive(model.running, now)
