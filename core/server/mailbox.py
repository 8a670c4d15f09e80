"""`Mailbox`: passes events from the engine's thread to the coroutine that answers a request."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from ..generation import Event


class Progress(NamedTuple):
    """How much of a prompt has been run, in tokens."""

    total: int
    cached: int
    processed: int
    ms: float


class Ping(NamedTuple):
    """The stream has had no event for long."""


Item = Event | Progress | Ping


class Mailbox:
    """Events of one request. `place` is the number of a sequence within the request."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, Item]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, place: int, item: Item) -> None:
        """May be called in any thread; `wake` has to be called in the loop afterwards."""
        self._items.append((place, item))

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[tuple[int, Item]]:
        """Returns all items; waits for one if there are none."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items
