"""Repetition, presence and frequency penalties over a window of recent tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .adjust import Adjustment, Logits, within


class Window:
    """How often each token occurs among the last `size`; -1 counts everything.

    Counting a token is O(1), so a window over a long text costs what its distinct tokens cost.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._recent: deque[int] = deque()  # unused where nothing ever leaves
        self._slots: dict[int, int] = {}
        self._tokens = np.empty(64, np.int64)
        self._counts = np.empty(64, np.int64)

    @property
    def tokens(self) -> NDArray[np.int64]:
        return self._tokens[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counts[: len(self._slots)]

    def add(self, token: int) -> None:
        if self.size == 0:
            return
        slot = self._slots.get(token)
        if slot is None:
            self._open(token)
        else:
            self._counts[slot] += 1
        if self.size > 0:
            self._recent.append(token)
            if len(self._recent) > self.size:
                self._remove(self._recent.popleft())

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.add(token)

    def copy(self) -> Window:
        twin = Window(self.size)
        twin._recent = self._recent.copy()
        twin._slots = self._slots.copy()
        twin._tokens, twin._counts = self._tokens.copy(), self._counts.copy()
        return twin

    def save(self) -> list[list[int]]:
        """The window's tokens; where nothing leaves, the distinct ones and their counts."""
        if self.size > 0:
            return [list(self._recent)]
        return [self.tokens.tolist(), self.counts.tolist()]

    @classmethod
    def load(cls, size: int, saved: list[list[int]]) -> Window:
        window = cls(size)
        if size > 0:
            (recent,) = saved
            window.extend(recent)
            return window
        tokens, counts = saved
        if len(set(tokens)) < len(tokens) or 0 in counts:
            raise ValueError("each token has one count, of at least 1")
        for slot, (token, count) in enumerate(zip(tokens, counts, strict=True)):
            window._open(token)
            window._counts[slot] = count
        return window

    def _open(self, token: int) -> None:
        slot = len(self._slots)
        if slot == self._tokens.size:
            self._tokens = np.resize(self._tokens, 2 * slot)
            self._counts = np.resize(self._counts, 2 * slot)
        self._slots[token] = slot
        self._tokens[slot], self._counts[slot] = token, 1

    def _remove(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot]:
            return
        # The last slot moves into the gap.
        del self._slots[token]
        last = len(self._slots)
        if slot != last:
            moved = int(self._tokens[last])
            self._slots[moved] = slot
            self._tokens[slot], self._counts[slot] = moved, self._counts[last]


def penalties(window: Window, repeat: float, presence: float, frequency: float) -> Adjustment:
    """Positive logits are divided by `repeat` and others multiplied; then `presence` once and
    `frequency` per occurrence are subtracted."""
    counts = window.counts

    def change(logits: Logits, found: NDArray[np.bool_]) -> Logits:
        repeated = within(np.where(logits <= 0, logits * repeat, logits / repeat))
        lowered = within(counts[found] * float(frequency) + presence)
        return np.subtract(repeated, lowered)

    return Adjustment(window.tokens, change)
