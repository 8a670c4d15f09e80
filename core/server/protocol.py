"""uvicorn's HTTP/1.1, with a time limit for the headers of a request, and a limit on how many
requests are read in one turn of the loop."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .api_errors import headers_too_large
from .formats import encode
from .request_log import RequestLog, note_leaving

# Requests that are read in one turn of the loop; streams and `/health` are served in between.
# One takes some 0.5 ms from its bytes to the queue of the engine.
_AT_ONCE: Final = 8
_TOO_LARGE: Final = 431
_LINGER_S: Final = 1.0
_FIRST: Final = (b"GET /health ", b"GET /v1/health ")


class ReadLimiter:
    """Limits the requests that one server reads at once. All methods run in the loop."""

    def __init__(self) -> None:
        self._waiting: deque[LimitedH11Protocol] = deque()
        self._n_left, self._is_due = _AT_ONCE, False

    def admits(self) -> bool:
        """Returns whether one more request may be read now."""
        self._call_soon()
        if self._waiting or not self._n_left:
            return False
        self._n_left -= 1
        return True

    def wait(self, protocol: LimitedH11Protocol) -> None:
        """Queues a connection; its `resume` is called later."""
        self._waiting.append(protocol)

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._is_due, self._n_left = False, _AT_ONCE
        while self._waiting and self._n_left:
            self._n_left -= 1
            self._waiting.popleft().resume()
        if self._waiting:
            self._call_soon()


class LimitedH11Protocol(H11Protocol):
    header_s: ClassVar[float] = 60.0
    read_limiter: ClassVar[ReadLimiter]
    log: ClassVar[RequestLog]
    numbers: ClassVar[Iterator[int]]  # of the connections through Unix sockets
    _timer: asyncio.TimerHandle | None = None
    _held: bytes = b""  # received bytes that wait until they may be read
    _is_refused: bool = False  # what still comes is of no interest

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.client = self.client or ("unix", next(self.numbers))  # a name of its own, for the log
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._held:  # read before the pause
            self._held += data
        elif data.startswith(_FIRST) or self.read_limiter.admits():
            self._read(data)
        else:
            self._held = data
            self.flow.pause_reading()
            self.read_limiter.wait(self)

    def resume(self) -> None:
        data, self._held = self._held, b""
        if not data or self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._read(data)

    def _read(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._timer is None:  # the beginning of another request
            self._expect_headers()

    def send_400_response(self, msg: str) -> None:
        """Called while h11's error is handled, which says when the headers are too large."""
        error = sys.exception()
        if getattr(error, "error_status_hint", 400) != _TOO_LARGE:
            self.log.note_unreadable(self.client, 400, msg)
            super().send_400_response(msg)
            return
        refusal = headers_too_large(self.config.h11_max_incomplete_event_size or 0)
        self.log.note_unreadable(self.client, _TOO_LARGE, refusal.message)
        body = encode(refusal.body)
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        response = h11.Response(status_code=_TOO_LARGE, headers=headers)
        events = (response, h11.Data(data=body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        # A close while the client still sends would take the response away from it.
        self._is_refused = True
        self.loop.call_later(_LINGER_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._held = b""
        if self.cycle is not None and not self.cycle.response_complete:
            note_leaving(self.cycle.scope)
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._timer = self.loop.call_later(self.header_s, self._give_up)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE and not self._held:
            self.transport.close()


def protocol(header_s: float, log: RequestLog) -> type[asyncio.Protocol]:
    members = {"header_s": header_s, "log": log, "read_limiter": ReadLimiter(), "numbers": count(1)}
    return type("Protocol", (LimitedH11Protocol,), members)
