"""Where a caller's events wait: for a thread, or for a coroutine."""

from __future__ import annotations

from contextlib import suppress
from queue import SimpleQueue

from ..generation import Event
from ..worker.mailboxes import Item, Mailbox


class Inbox(Mailbox):
    """Of a caller that waits in its own thread."""

    is_in_loop = False

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[int, Event]] = SimpleQueue()

    def put(self, place: int, item: Item) -> None:
        if isinstance(item, Event):
            self._queue.put((place, item))

    def next(self) -> tuple[int, Event]:
        """The number of a sequence among those of the call, and its next event."""
        return self._queue.get()


class AsyncInbox(Mailbox):
    """Of a caller that waits in the event loop that is running now."""

    is_in_loop = False

    def __init__(self) -> None:
        import asyncio  # here: see `worker`

        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def put(self, place: int, item: Item) -> None:
        if isinstance(item, Event):
            with suppress(RuntimeError):  # the loop is closed: its caller has gone
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (place, item))

    async def next_event(self) -> tuple[int, Event]:
        return await self._queue.get()
