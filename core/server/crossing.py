"""`Crossing`: from the engine's thread into the loop, with one wake-up for all that a step brought.

The engine never waits for a client: before the next step the loop has a moment to pass on what
there is, and sending is never waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Event
from typing import Final

from .mailbox import Mailbox

# Where the model's threads use all cores, the loop would be served last by the system, and stop
# them in the middle of a step. So it has the machine first, for as long as it usually takes.
HAND_OVER_S: Final = 0.002


class Crossing:
    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._touched: dict[Mailbox, None] = {}  # in this step
        self._to_wake: deque[Mailbox] = deque()
        self._is_wake_due = False
        self._is_told = Event()

    @property
    def is_due(self) -> bool:
        """There is something to `wake` for."""
        return bool(self._touched)

    def touch(self, mailbox: Mailbox) -> None:
        """Something was put into it."""
        self._touched[mailbox] = None

    def wake(self) -> None:
        """Those whose mailboxes were touched."""
        self._to_wake.extend(self._touched)
        self._touched.clear()
        if not self._is_wake_due:
            self._is_wake_due = True
            self._is_told.clear()
            self.run_in_loop(self._wake_all)
        self._is_told.wait(HAND_OVER_S)

    def run_in_loop(self, function: Callable[[], None]) -> None:
        if self.loop is None:  # nobody listens yet; `Worker.start` will look
            return
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            self._to_wake.clear()

    def _wake_all(self) -> None:
        self._is_wake_due = False  # before looking, or what comes meanwhile would be missed
        while self._to_wake:
            self._to_wake.popleft().wake()
        if self.loop is not None:
            self.loop.call_soon(self._told)  # behind those who were woken

    def _told(self) -> None:
        self._is_told.set()
