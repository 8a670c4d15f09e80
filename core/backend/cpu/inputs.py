"""The arrays of one step where the kernels look for them: fixed addresses, new contents."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ..layers import Rope
from ..step import Step
from .kernels.attention import StepWords
from .kernels.pack import RowSet
from .kernels.tile import WIDTHS

Words = NDArray[np.int64]
SPARE_ROWS = max(WIDTHS)  # a group may be wider than the rows that are left


@cache
def groups_of(n_rows: int) -> tuple[Words, Words, Words]:
    """Groups (first row, width), and of each row the first row and width of its group.

    One row alone, else the narrowest kernel that takes what is left, idle rows included; between
    9 and 12 rows, 8 and what is left are cheaper than 16.
    """
    groups, row = [], 0
    while row < n_rows:
        left = n_rows - row
        width = 1 if left == 1 else 4 if left <= 4 else 8 if left <= 12 else 16
        groups.append((row, width))
        row += width
    table = np.array(groups, np.int64).reshape(-1, 2)
    widths = np.repeat(table[:, 1], table[:, 1])
    return table, np.repeat(table[:, 0], table[:, 1]), widths


class RowCount:
    """A row set: how many rows, and their groups."""

    def __init__(self) -> None:
        self.words = np.zeros(RowSet.WORDS, np.int64)
        self.address = self.words.ctypes.data
        self._held: object = None
        self.set(1)

    def set(self, n_rows: int) -> None:
        if n_rows == self.words[RowSet.COUNT] and self._held is not None:
            return
        table, start, size = self._held = groups_of(n_rows)
        self.words[:] = (n_rows, len(table), *(a.ctypes.data for a in (table, start, size)))


class RopeTable:
    """cos and sin of positions, as far as they were asked for: [cos …, sin …] in each row."""

    def __init__(self, rope: Rope, n_positions: int) -> None:
        self.rope = rope
        self.rows = np.empty((n_positions, 2 * len(rope.frequencies)), np.float32)
        self.filled = 0

    def fill(self, n_positions: int) -> None:
        end = min(max(n_positions, 2 * self.filled, 512), len(self.rows))
        # float64: at position 10^5 a float32 angle is 0.004 off.
        angles = np.arange(self.filled, end)[:, None] * self.rope.frequencies
        tables = np.cos(angles), np.sin(angles)
        self.rows[self.filled : end] = np.concatenate(tables, axis=1) * self.rope.magnitude
        self.filled = end


class StepInputs:
    """What a program reads of a step."""

    def __init__(self, max_rows: int, max_sequences: int, max_pages: int) -> None:
        self.max_rows, self.max_sequences = max_rows, max_sequences
        self.rows, self.out_rows = RowCount(), RowCount()
        room = max_rows + SPARE_ROWS
        self.tokens, self.positions, self.sequence_of, self.out_index = (
            np.zeros(room, np.int64) for _ in range(4)
        )
        self.starts = np.zeros(max_sequences + 1, np.int64)
        self.slots, self.past, self.replay = (np.zeros(max_sequences, np.int64) for _ in range(3))
        self.pages = np.zeros((max_sequences, max_pages), np.int64)
        self.ropes: list[RopeTable] = []
        self._sources: tuple[memoryview, ...] = ()  # what may change when one row is run again
        self._targets = tuple(
            array.data for array in (self.tokens, self.positions, self.past, self.replay)
        )
        self.words = np.zeros(StepWords.COUNT, np.int64)
        self.words[:] = [
            self.rows.address, 0, *(a.ctypes.data for a in (
                self.starts, self.slots, self.past, self.replay, self.pages)),
            self.pages.strides[0], self.positions.ctypes.data, self.sequence_of.ctypes.data,
        ]  # fmt: skip
        self.address = self.words.ctypes.data

    def rope_table(self, rope: Rope, n_positions: int) -> RopeTable:
        for table in self.ropes:
            if table.rope is rope:
                return table
        self.ropes.append(RopeTable(rope, n_positions))
        return self.ropes[-1]

    def check(self, n_rows: int, n_sequences: int) -> None:
        if n_rows > self.max_rows or n_sequences > self.max_sequences:
            raise ConfigError(
                f"a step of {n_rows} rows and {n_sequences} sequences; at most {self.max_rows} and "
                f"{self.max_sequences} were planned for"
            )

    def fill(self, step: Step) -> None:
        n, b = len(step.tokens), len(step.slots)
        self.check(n, b)
        self.rows.set(n)
        self.out_rows.set(len(step.out_rows))
        self.pages[:b, : step.pages.shape[1]] = step.pages
        self._fill_rows(step, n, b)
        # Positions of a sequence ascend; of several the last rows are looked at.
        last = step.positions[n - 1] if b == 1 else step.positions[step.starts[1:] - 1].max()
        self._fill_ropes(int(last) + 1)
        arrays = (step.tokens, step.positions, step.past, step.replay)
        self._sources = tuple(array.data for array in arrays) if n == 1 else ()

    def fill_again(self) -> None:
        """The step of one row that came last, with other numbers in it: plain decoding. Through
        views of the memory, because each call of numpy takes 5 to 10 us when the weights of a step
        have just flushed the caches."""
        for target, source in zip(self._targets, self._sources, strict=True):
            target[0] = source[0]
        self._fill_ropes(self._sources[1][0] + 1)

    def reach(self, n_positions: int) -> int:
        """Rope tables know so many positions from now on; returns how many they do know."""
        self._fill_ropes(n_positions)
        return min((table.filled for table in self.ropes), default=1 << 62)

    def _fill_ropes(self, n_positions: int) -> None:
        for table in self.ropes:
            if n_positions > table.filled:
                table.fill(n_positions)

    def _fill_rows(self, step: Step, n: int, b: int) -> None:
        self.tokens[:n], self.positions[:n] = step.tokens, step.positions
        self.out_index[: len(step.out_rows)] = step.out_rows
        self.words[StepWords.N_SEQUENCES] = b
        self.starts[: b + 1] = step.starts
        self.slots[:b], self.past[:b], self.replay[:b] = step.slots, step.past, step.replay
        self.sequence_of[:n] = 0 if b == 1 else np.repeat(np.arange(b), np.diff(step.starts))
