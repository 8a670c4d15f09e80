"""Between the engine's thread and the loop that answers clients.

The engine never waits for a client: before the next step the loop has a moment to pass on what
there is, with one wake-up for all events of a step, and sending is never waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import UnavailableError
from ..generation import Event

if TYPE_CHECKING:
    import asyncio

# Where the model's threads use all cores, the loop would be served last by the system, and stop
# them in the middle of a step. So it has the machine first, for as long as it usually takes.
HAND_OVER_S: Final = 0.002


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

    is_in_loop = True  # the loop wakes its request; others are awake once an item is put

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
        import asyncio  # here: see `worker`

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


def ping(mailbox: Mailbox, place: int) -> None:
    mailbox.put(place, Ping())
    mailbox.wake()


class ThreadBridge:
    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._touched: dict[Mailbox, None] = {}  # in this step
        self._to_wake: deque[Mailbox] = deque()
        self._is_wake_due = False
        self._is_done = threading.Event()

    @property
    def is_due(self) -> bool:
        """Whether a mailbox has new items."""
        return bool(self._touched)

    def touch(self, mailbox: Mailbox) -> None:
        """The mailbox has a new item."""
        if mailbox.is_in_loop:
            self._touched[mailbox] = None

    def wake(self) -> None:
        """Wake the requests whose mailboxes have new items."""
        self._to_wake.extend(self._touched)
        self._touched.clear()
        if not self._is_wake_due:
            self._is_wake_due = True
            self._is_done.clear()
            self.run_in_loop(self._wake_all)
        self._is_done.wait(HAND_OVER_S)

    def run_in_loop(self, function: Callable[[], None]) -> None:
        if self.loop is None:  # not serving yet; `Worker.start` wakes
            return
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: no request is left
            self._to_wake.clear()

    def _wake_all(self) -> None:
        self._is_wake_due = False  # before looking, or what comes meanwhile would be missed
        while self._to_wake:
            self._to_wake.popleft().wake()
        if self.loop is not None:
            self.loop.call_soon(self._finish_hand_over)  # behind the requests that were woken

    def _finish_hand_over(self) -> None:
        self._is_done.set()


class ReloadWaiters:
    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        import asyncio

        waker = asyncio.get_running_loop().create_future()
        self._waiting.append(waker)
        await waker

    def release(self, *, is_there: bool) -> None:
        """Ends all waits; with an `UnavailableError` if the model is not loaded."""
        waiting, self._waiting = self._waiting, []
        for waker in waiting:
            if waker.done():
                continue
            if is_there:
                waker.set_result(None)
            else:
                error = UnavailableError("the model cannot be loaded again", retry_after=5)
                waker.set_exception(error)
