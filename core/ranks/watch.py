"""`Watch`: which rank lives and does not get on.

A process that has ended is noticed by its end; one that hangs, only by what it does not do. What
may take long without a fault (loading, the first step of a size, which compiles) has no limit
here: the process group's own is far longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .pulse import Place, Pulse

LOOK_S: Final = 0.25
_AWAKE: Final = 4  # looks that may pass as one: what is more, the watcher itself has slept
SLOWER: Final = 10  # times as long as the slowest step so far
MOST_S: Final = 600.0

frozen_s = 30.0  # without a sign of life
step_s = 60.0  # of a step whose kernels are there; more where steps take longer


@dataclass(frozen=True, slots=True)
class Talk:
    """With the ranks, under way."""

    number: int
    limit: float | None  # seconds; None: as long as it takes


@dataclass(frozen=True, slots=True)
class Hang:
    which: int | None  # of the pulses; None: nobody can tell
    what: str


class Watch:
    """Only time counts in which the watcher was awake: a machine that was suspended, or a process
    that was stopped and goes on, has lost nothing."""

    def __init__(self, pulses: Sequence[Pulse]) -> None:
        self._pulses = pulses
        self._beats = [0 for _ in pulses]
        self._silent = [0.0 for _ in pulses]
        self._talk, self._spent = -1, 0.0

    def look(self, elapsed: float, talk: Talk | None) -> Hang | None:
        """`elapsed`: since the last look."""
        elapsed = min(elapsed, _AWAKE * LOOK_S)
        return self._frozen(elapsed) or self._late(elapsed, talk)

    def _frozen(self, elapsed: float) -> Hang | None:
        for i, pulse in enumerate(self._pulses):
            beats = pulse.beats
            self._silent[i] += elapsed
            if beats != self._beats[i] or not beats:
                self._beats[i], self._silent[i] = beats, 0.0
            limit = MOST_S if pulse.place == Place.STARTS else frozen_s
            if self._silent[i] > limit:
                return Hang(i, f"stands still: no sign of life for {limit:.0f} s")
        return None

    def _late(self, elapsed: float, talk: Talk | None) -> Hang | None:
        if talk is None or talk.limit is None or talk.number != self._talk:
            self._talk, self._spent = -1 if talk is None else talk.number, 0.0
            return None
        self._spent += elapsed
        if self._spent <= talk.limit:
            return None
        for i, pulse in enumerate(self._pulses):
            if pulse.place == Place.RUNS:
                return Hang(i, f"has not done its part of a step in {talk.limit:.0f} s")
        return Hang(
            None, f"a step has not ended in {talk.limit:.0f} s, and no rank is at work on it"
        )


def limit_after(slowest: float) -> float:
    """Of a step, where the slowest so far took so many seconds."""
    return min(max(step_s, SLOWER * slowest), MOST_S)
