"""How much of a run is over, and what the learning rates are then.

The budget is tokens, which makes runs repeat, or minutes, which makes them end on time whatever
else the machine does. Steps during which the process was stopped count as one ordinary step.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

WARM_UP = 0.015  # of the trunk's part
DECAY_FROM = 0.45  # of a part: after this the rate falls to zero, linearly
HEAD_PART = 0.14  # of the run: at its end only the MTP head is trained
HEAD_RATE = 0.5
STALL = 4.0  # times the median step; what is longer was not spent on training


@dataclass(frozen=True, slots=True)
class Budget:
    tokens: int = 0
    minutes: float = 0.0

    def progress(self, n_tokens: int, seconds: float) -> float:
        by_tokens = n_tokens / self.tokens if self.tokens else 0.0
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_tokens, by_time))


@dataclass
class Clock:
    """Seconds of training, without those in which it did not run."""

    seconds: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=50))

    def add(self, step: float) -> None:
        if len(self.recent) >= 5:
            step = min(step, STALL * statistics.median(self.recent))
        self.recent.append(step)
        self.seconds += step


@dataclass(frozen=True, slots=True)
class Moment:
    head_only: bool
    scale: float  # of the learning rates


def moment(progress: float, *, has_head: bool) -> Moment:
    trunk_part = 1 - HEAD_PART if has_head else 1.0
    if progress < trunk_part:
        return Moment(False, _trapezoid(progress / trunk_part))
    return Moment(True, HEAD_RATE * _trapezoid((progress - trunk_part) / HEAD_PART))


def _trapezoid(part: float) -> float:
    if part < WARM_UP:
        return max(part / WARM_UP, 0.02)
    return min(1.0, (1 - part) / (1 - DECAY_FROM))
