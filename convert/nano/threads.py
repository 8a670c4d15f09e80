"""Fewer threads while others want the processor.

A product over two threads waits for the slower one: with one of two cores taken by somebody else,
a step on both takes longer than one on the free core alone. So both are tried, again and again.
"""

from __future__ import annotations

import torch

ROUND = 24  # steps, of which the first TRIED are on the count that is not in favour
TRIED = 2
KEEP = 0.6  # of the old estimate in the new one


class Threads:
    def __init__(self, most: int) -> None:
        self.counts = sorted({most, max(1, most // 2)}, reverse=True)
        self._seconds: dict[int, float] = {}
        self._step = 0
        self.current = most
        torch.set_num_threads(most)

    def after_step(self, seconds: float) -> None:
        known = self._seconds.get(self.current, seconds)
        self._seconds[self.current] = KEEP * known + (1 - KEEP) * seconds
        self._step += 1
        self.current = self._choose()
        torch.set_num_threads(self.current)

    def _choose(self) -> int:
        best = min(self.counts, key=lambda count: self._seconds.get(count, 0.0))
        others = [count for count in self.counts if count != best]
        return others[0] if others and self._step % ROUND < TRIED else best
