"""The front as a server."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp

from ..serving import Listening
from ..settings import ServerSettings
from .fleet import DEAD, Fleet
from .front import Front

_LAST_WORDS_S: Final = 0.3  # to pass on what replicas have said at the end
_MORE_S: Final = 0.8  # for replicas to end, after their drain


class FrontServing(Listening):
    def __init__(
        self, fleet: Fleet, settings: ServerSettings, sock: socket.socket,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.fleet = fleet
        self.front = Front(fleet, settings)
        self._on_ready, self._was_ready = on_ready, False
        super().__init__(settings, sock)

    def _app(self) -> ASGIApp:
        return self.front.app()

    def _begin(self) -> None:
        self.fleet.start(self._on_change)

    def _on_change(self) -> None:
        if self.fleet.state == DEAD:
            self.stop()
        elif self.fleet.is_complete and not self._was_ready:
            self._was_ready = True
            self._on_ready()

    def _code(self) -> int:
        return 1 if self.fleet.failure is not None else 0

    async def _finish(self) -> None:
        await self.fleet.end(self.settings.drain_s + _MORE_S)
        end = time.perf_counter() + _LAST_WORDS_S
        while self.front.under_way and time.perf_counter() < end:
            await asyncio.sleep(0.02)

    def _look_after(self, now: float) -> None:
        """Clients that do not read are given up; replicas see to it that streams are not silent."""
        for each in list(self.front.under_way):
            if each.waits_since and now - each.waits_since > self.settings.io_s:
                each.give_up()
                self._hang_up(each.client)
