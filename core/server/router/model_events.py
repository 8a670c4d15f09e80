"""`ModelEvents`: what becomes of the models of a server, as llama-server's `/models/sse` streams
it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..formats import encode

ALL_MODELS: Final = "*"
_MOST: Final = 1000  # events that a client has not read: more, and it is left out
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_PING: Final = b":\n\n"
_Queue = asyncio.Queue[bytes]  # an empty event is the end


class ModelEvents:
    """All methods run in the loop."""

    def __init__(self) -> None:
        self._queues: set[_Queue] = set()
        self._has_ended = False

    def send(self, model: str, event: str, data: Any = None) -> None:
        if not self._queues:
            return
        found: dict[str, Any] = {"model": model, "event": event}
        if data is not None:
            found["data"] = data
        self._put(b"data: " + encode(found) + b"\n\n")

    def end(self) -> None:
        """Of the server."""
        self._has_ended = True
        self._put(b"")

    def open(self) -> _Queue:
        queue: _Queue = asyncio.Queue(_MOST)
        if self._has_ended:
            queue.put_nowait(b"")
        self._queues.add(queue)
        return queue

    def close(self, queue: _Queue) -> None:
        self._queues.discard(queue)

    def _put(self, event: bytes) -> None:
        for queue in list(self._queues):
            is_behind = queue.full()
            if is_behind:
                self._queues.discard(queue)
                queue.get_nowait()
            queue.put_nowait(b"" if is_behind else event)


class EventsResponse(Response):
    """Its head is sent at once: who has that misses nothing."""

    def __init__(self, events: ModelEvents, ping_s: float) -> None:
        self._events, self._ping_s = events, ping_s
        self.status_code, self.background = 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        queue = self._events.open()
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        leaving.add_done_callback(lambda _done: self._events.close(queue))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": _PING, "more_body": True})
            while not leaving.done() and (event := await self._next(queue, leaving)):
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()
            self._events.close(queue)

    async def _next(self, queue: _Queue, leaving: asyncio.Future[None]) -> bytes:
        """Empty at the end."""
        event = asyncio.ensure_future(queue.get())
        waited = (event, leaving)
        done, _ = await asyncio.wait(
            waited, timeout=self._ping_s or None, return_when=asyncio.FIRST_COMPLETED
        )
        if event in done:
            return event.result()
        event.cancel()
        return b"" if done else _PING


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
