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
    n_slots: int
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
    """The last beat of each replica."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[int, tuple[Beat, float]] = {}

    def note(self, beat: Beat) -> None:
        self._last[beat.replica] = beat, self._clock()

    def pulses(self) -> dict[int, Pulse]:
        now = self._clock()
        return {
            replica: Pulse(beat.n_slots, beat.process, now - at)
            for replica, (beat, at) in self._last.items()
        }


class BeatThread:
    """Calls `send` again and again, as long as the loop turns; `pause` between two times."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, send: Callable[[], None],
        pause: Callable[[], object] = lambda: time.sleep(BEAT_S),
    ) -> None:  # fmt: skip
        self._loop, self._send, self._pause = loop, send, pause
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """After the loop is closed."""
        self._thread.join()

    def _run(self) -> None:
        turned = Event()
        while not self._loop.is_closed():
            turned.clear()
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # closed meanwhile
                return
            turned.wait()
            self._send()
            self._pause()
