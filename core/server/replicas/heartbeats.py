"""Heartbeats: how the server process sees which replicas can answer. A thread of each replica beats
while the loop beside it turns; a step of the model may take as long as it likes meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final, NamedTuple

BEAT_S: Final = 0.5
SILENT_S: Final = 3.0  # without a beat: the replica hangs, or is gone


class Beat(NamedTuple):
    replica: int
    n_slots: int  # 0: the model loads
    process: str  # a replica that is started again is another one


class Pulse(NamedTuple):
    """The last beat of a replica, and the time since."""

    n_slots: int
    process: str
    age: float

    @property
    def is_silent(self) -> bool:
        return self.age > SILENT_S


class Heartbeats:
    """The last beat of each of `n` replicas, and their numbers."""

    def __init__(self, n: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._n, self._clock = n, clock
        self._last: dict[int, tuple[Beat, float]] = {}

    def take_number(self, process: str) -> int | None:
        """The number of a new replica: one that none has, or a silent one. None: there is none yet,
        as one that has just ended is not silent yet. Ray's ranks would go beyond `n` where a
        replica begins before that which it replaces has ended."""
        pulses = self.pulses()
        for number in range(self._n):
            if number not in pulses or pulses[number].is_silent:
                self._last[number] = Beat(number, 0, process), self._clock()
                return number
        return None

    def note(self, beat: Beat) -> None:
        """Of one that has lost its number to another, nothing is noted."""
        if self._last[beat.replica][0].process == beat.process:
            self._last[beat.replica] = beat, self._clock()

    def pulses(self) -> dict[int, Pulse]:
        now = self._clock()
        return {
            replica: Pulse(beat.n_slots, beat.process, now - at)
            for replica, (beat, at) in self._last.items()
        }


class BeatThread:
    """Calls `send` again and again, as long as `loop` turns, once it is set; `pause` between two
    times."""

    def __init__(
        self, send: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None,
        pause: Callable[[], object] = lambda: time.sleep(BEAT_S),
    ) -> None:  # fmt: skip
        self.loop, self._send, self._pause = loop, send, pause
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """After the loop is closed."""
        self._thread.join()

    def _run(self) -> None:
        while self.loop is None or _turns(self.loop):
            self._send()
            self._pause()


def _turns(loop: asyncio.AbstractEventLoop) -> bool:
    """Waits until it does. False: it is closed."""
    turned = Event()
    try:
        loop.call_soon_threadsafe(turned.set)
    except RuntimeError:
        return False
    turned.wait()
    return True
