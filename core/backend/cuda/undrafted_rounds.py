"""Rounds in a row in which nothing is drafted, although there is a drafter.

In the first of them it reads what has come out so far; then it is left out, for reading each token
costs as much as a layer. The model's hidden rows are kept meanwhile. When drafts are planned again,
the session ends, and the drafter reads all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..interface.device_loop import SequenceResult
from ..layers import Floats
from .device_contract import Device
from .round_memory import RoundMemory

MOST_UNDRAFTED: Final = 192  # rounds


class UndraftedRounds:
    def __init__(self, device: Device, memory: RoundMemory) -> None:
        self._device, self._memory = device, memory
        self._n_lines = memory.size.n_sequences
        self._over = [False] * self._n_lines
        self.end()

    def end(self) -> None:
        """Something is drafted again, or for the first time."""
        self.n = 0  # rounds that were enqueued
        self._first = -1  # number of the first of them
        self._tokens: list[list[int]] = [[] for _ in range(self._n_lines)]
        # Of each sequence, where the hidden rows are that go with these tokens: round, row.
        self._rows: list[list[tuple[int, int]]] = [[] for _ in range(self._n_lines)]

    @property
    def may_end(self) -> bool:
        """Whether what the drafter has not read is where its next step reads it."""
        return self.n < 2

    @property
    def may_go_on(self) -> bool:
        return self.n < MOST_UNDRAFTED

    def keep(self, number: int) -> None:
        """The round of this number was just enqueued."""
        if not self.n:
            self._first = number
        rows = self._memory.taps[: self._n_lines]
        self._device.copy(self._memory.history(MOST_UNDRAFTED)[self.n], rows)
        self.n += 1

    def read(self, number: int, sequences: Sequence[SequenceResult]) -> None:
        """The results of any round; without drafts, each live sequence had one row in it."""
        place = number - self._first
        row = 0
        for sequence, result in enumerate(sequences):
            if not self._over[sequence]:
                if self.n and place >= 0 and result.tokens:
                    self._tokens[sequence] += result.tokens
                    self._rows[sequence].append((place, row))
                row += 1
            self._over[sequence] = result.is_over

    def unread(self) -> list[tuple[list[int], Floats]]:
        """Of each sequence: tokens, and the hidden rows of the positions before them."""
        kept = self._device.get(self._memory.history(MOST_UNDRAFTED)[: self.n])
        width = self._memory.size.width
        return [
            (tokens, np.array([kept[at] for at in rows], np.float32).reshape(-1, width))
            for tokens, rows in zip(self._tokens, self._rows, strict=True)
        ]
