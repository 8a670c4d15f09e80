"""The pace of a run: its budget and its learning rates.

The budget is tokens or steps, which makes runs repeat, or minutes, which makes them end on time
whatever else the machine does. Steps during which the process was stopped count as one ordinary
step.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from msgspec import Struct

WARM_UP = 0.004  # of the run
DECAY_FROM = 0.45  # of the run: after this the rate falls to zero, linearly
STALL = 4.0  # times the median step; what is longer was not spent on training


class TrainingBudget(Struct, frozen=True):
    tokens: int = 0
    minutes: float = 0.0
    rate: float = 1.0  # times the usual learning rates
    steps: int = 0
    of_acceptance_from: float = 1.0  # of the run: the loss is cross entropy alone until then

    def progress(self, n_tokens: int, seconds: float, n_steps: int = 0) -> float:
        by_tokens = n_tokens / self.tokens if self.tokens else 0.0
        by_steps = n_steps / self.steps if self.steps else 0.0
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_tokens, by_time, by_steps))

    def rate_at(self, progress: float) -> float:
        """The factor of the learning rates."""
        if progress < WARM_UP:
            return self.rate * max(progress / WARM_UP, 0.02)
        return self.rate * min(1.0, (1 - progress) / (1 - DECAY_FROM))


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
