"""The pace of a run: its budget, its learning rates, its number of threads.

The budget is tokens, which makes runs repeat, or minutes, which makes them end on time whatever
else the machine does. Steps during which the process was stopped count as one ordinary step.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

import torch

WARM_UP = 0.004  # of the trunk's part
DECAY_FROM = 0.45  # of a part: after this the rate falls to zero, linearly
HEAD_PART = 0.14  # of the run: at its end only the MTP head is trained
HEAD_RATE = 0.5
LONG_TOKENS, LONG_MINUTES = 3_000_000, 15
THREAD_ROUND = 48  # steps, of which the first TRIED are on the count that is not in favour
TRIED = 3
KEEP = 0.3  # of the old estimate in the new one
STALL = 4.0  # times the median step; what is longer was not spent on training


@dataclass(frozen=True, slots=True)
class TrainingBudget:
    tokens: int = 0
    minutes: float = 0.0
    rate: float = 1.0  # times the usual learning rates

    @property
    def is_long(self) -> bool:
        """Long enough for compiled loops, which take minutes at the start, to be worth it."""
        return self.tokens > LONG_TOKENS or self.minutes > LONG_MINUTES

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
class SchedulePoint:
    head_only: bool
    scale: float  # of the learning rates


def schedule_point(progress: float, *, has_head: bool) -> SchedulePoint:
    trunk_part = 1 - HEAD_PART if has_head else 1.0
    if progress < trunk_part:
        return SchedulePoint(False, _trapezoid(progress / trunk_part))
    return SchedulePoint(True, HEAD_RATE * _trapezoid((progress - trunk_part) / HEAD_PART))


def _trapezoid(part: float) -> float:
    if part < WARM_UP:
        return max(part / WARM_UP, 0.02)
    return min(1.0, (1 - part) / (1 - DECAY_FROM))


class ThreadCount:
    """Fewer threads while other programs use the processor.

    A product over two threads waits for the slower one: with one of two cores in use elsewhere, a
    step on both takes longer than one on the free core alone. So both are tried, again and again;
    the first step behind a change does not count, since products are prepared anew.
    """

    def __init__(self, most: int) -> None:
        self.counts = sorted({most, max(1, most // 2)}, reverse=True)
        self._seconds: dict[int, float] = {}
        self._step = 0
        self._is_new = True
        self.current = most
        torch.set_num_threads(most)

    def after_step(self, seconds: float) -> None:
        if not self._is_new:
            known = self._seconds.get(self.current, seconds)
            self._seconds[self.current] = KEEP * known + (1 - KEEP) * seconds
        self._step += 1
        chosen = self._choose()
        self._is_new, self.current = chosen != self.current, chosen
        torch.set_num_threads(chosen)

    def _choose(self) -> int:
        best = min(self.counts, key=lambda count: self._seconds.get(count, 0.0))
        others = [count for count in self.counts if count != best]
        return others[0] if others and self._step % THREAD_ROUND < TRIED else best
