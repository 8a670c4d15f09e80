"""From the engine's thread to the coroutine that answers a request, with one wake-up per step."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from ..generation import Event


class Progress(NamedTuple):
    """How far a prompt has been read."""

    total: int
    cached: int
    processed: int
    ms: float


class Ping(NamedTuple):
    """The stream has been silent for long."""


Item = Event | Progress | Ping


class Mailbox:
    """Of one request. `place` says which of its texts an item is about."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, Item]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, place: int, item: Item) -> None:
        """In any thread; somebody has to call `wake` in the loop afterwards."""
        self._items.append((place, item))

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[tuple[int, Item]]:
        """All that there is; waits until there is something."""
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
