"""Rounds in a row in which nothing is drafted, although there is a drafter.

In the first of them it reads what has come out so far; then it is left out, for reading each token
costs as much as a layer. The model's hidden rows are kept meanwhile: whoever wants drafts again
ends the session, and the drafter reads all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..interface.device_loop import SequenceResult
from ..layers import Floats
from .device_contract import Device
from .round_room import RoundRoom

MOST_QUIET: Final = 192  # rounds


class Quiet:
    def __init__(self, device: Device, room: RoundRoom) -> None:
        self._device, self._room = device, room
        self._n_lines = room.size.n_lines
        self._over = [False] * self._n_lines
        self.end()

    def end(self) -> None:
        """Something is drafted again, or for the first time."""
        self.n = 0  # rounds that were enqueued
        self._first = -1  # number of the first of them
        self._tokens: list[list[int]] = [[] for _ in range(self._n_lines)]
        # Of each line, where the hidden rows are that go with these tokens: round, row.
        self._rows: list[list[tuple[int, int]]] = [[] for _ in range(self._n_lines)]

    @property
    def may_end(self) -> bool:
        """What the drafter has not read is where its next step looks for it."""
        return self.n < 2

    @property
    def may_go_on(self) -> bool:
        return self.n < MOST_QUIET

    def keep(self, number: int) -> None:
        """The round of this number was just enqueued."""
        if not self.n:
            self._first = number
        rows = self._room.taps[: self._n_lines]
        self._device.copy(self._room.history(MOST_QUIET)[self.n], rows)
        self.n += 1

    def read(self, number: int, lines: Sequence[SequenceResult]) -> None:
        """What came out of any round; each line that was not over had one row in a quiet one."""
        place = number - self._first
        row = 0
        for line, result in enumerate(lines):
            if not self._over[line]:
                if self.n and place >= 0 and result.tokens:
                    self._tokens[line] += result.tokens
                    self._rows[line].append((place, row))
                row += 1
            self._over[line] = result.is_over

    def unread(self) -> list[tuple[list[int], Floats]]:
        """Of each line: tokens, and the hidden rows of the positions before them."""
        kept = self._device.get(self._room.history(MOST_QUIET)[: self.n])
        width = self._room.size.width
        return [
            (tokens, np.array([kept[at] for at in rows], np.float32).reshape(-1, width))
            for tokens, rows in zip(self._tokens, self._rows, strict=True)
        ]
