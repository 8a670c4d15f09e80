"""`IngressServing`: the server process of several replicas, from its sockets to its end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..request_log import RequestLog, log_speculation
from ..serving import Listening, note_drain
from ..settings import ServerSettings
from .forwarding import ReplicaSet
from .ingress import Ingress

_SENDING_S: Final = 0.3  # for the last events to reach clients


class IngressServing(Listening):
    def __init__(
        self, replicas: ReplicaSet, settings: ServerSettings, socks: Sequence[socket.socket],
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.replicas = replicas
        self.ingress = Ingress(replicas, settings)
        self._on_ready, self._was_ready = on_ready, False
        super().__init__(settings, socks)

    def _app(self) -> RequestLog:
        return self.ingress.app()

    def _begin(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_report_unless_cancelled)
        self._watching = asyncio.create_task(self.replicas.watch(self._on_change))

    def _on_change(self) -> None:
        if self.replicas.failure is not None:
            self.stop()
        elif len(self.replicas.ready) == self.replicas.n and not self._was_ready:
            self._was_ready = True
            self._on_ready()

    def _code(self) -> int:
        return 1 if self.replicas.failure is not None else 0

    async def _finish(self) -> None:
        self.ingress.is_draining = True
        self._watching.cancel()
        note_drain(len(self.ingress.open), self.settings)
        for fields in await self.replicas.drain():
            log_speculation(fields)
        end = time.perf_counter() + _SENDING_S
        while self.ingress.open and time.perf_counter() < end:
            await asyncio.sleep(0.02)

    def _look_after(self, now: float) -> None:
        """Closes the connections of clients that do not read."""
        for response in list(self.ingress.open):
            if response.waits_since and now - response.waits_since > self.settings.io_s:
                response.give_up()
                self._hang_up(response.client)


def _report_unless_cancelled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ray gathers the responses to a broadcast. When the broadcast is cancelled, asyncio reports
    the gathered future, whose CancelledError has no reader, with a traceback."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)
