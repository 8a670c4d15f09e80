"""uvicorn's HTTP/1.1, with an end to clients that never finish the headers of a request."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientForSoLong(H11Protocol):
    header_s: ClassVar[float] = 60.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._timer is None:  # the beginning of another request
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._timer = self.loop.call_later(self.header_s, self._give_up)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


def protocol(header_s: float) -> type[asyncio.Protocol]:
    return type("Protocol", (PatientForSoLong,), {"header_s": header_s})
