"""A plan as arrays: the `Step` that the model runs, written into buffers made once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend.step import Ints, Step
from ..state.store import SequenceState
from .config import EngineConfig
from .scheduler import Part


class Batch:
    def __init__(self, config: EngineConfig, tables: Ints) -> None:
        """`tables`: the page table of each slot, (slots, P)."""
        self._tables = tables
        sizes = config.sizes
        n_rows, n_slots = config.max_rows, sizes.n_slots
        self._tokens = np.zeros(n_rows, np.int32)
        self._positions = np.zeros(n_rows, np.int32)
        self._out_rows = np.zeros(n_rows, np.int32)
        self._starts = np.zeros(n_slots + 1, np.int32)
        self._slots = np.zeros(n_slots, np.int32)
        self._past = np.zeros(n_slots, np.int32)
        self._replay = np.zeros(n_slots, np.int32)
        self._pages = np.zeros((n_slots, sizes.pages_per_slot), np.int32)
        self._numbers = np.arange(max(sizes.n_ctx, n_rows) + 1, dtype=np.int32)
        # The latest step, if it was one row of one sequence: the next is probably the same with
        # four other numbers, which are quicker to write through views of the memory.
        self._single: Step | None = None
        self._state: SequenceState | None = None
        self._n_changes = 0
        self._firsts = tuple(
            array.data for array in (self._tokens, self._positions, self._past, self._replay)
        )

    def build(self, parts: Sequence[Part]) -> Step:
        """Valid until the next call. Makes sure that every row has a cell to write to."""
        part = parts[0]
        if len(parts) > 1 or len(part.tokens) > 1 or not part.n_out:
            self._single = None
            return self._build(parts)
        state = part.state
        past, table = state.n_cells, state.table
        table.reserve(past, past + 1)
        step = self._single
        if step is None or state is not self._state or table.n_changes != self._n_changes:
            self._single = None
            step = self._build(parts)
            self._single, self._state, self._n_changes = step, state, table.n_changes
        else:
            tokens, positions, pasts, replays = self._firsts
            tokens[0], positions[0] = part.tokens[0], past
            pasts[0], replays[0] = past, state.replay
        return step

    def _build(self, parts: Sequence[Part]) -> Step:
        numbers = self._numbers
        row = n_out = 0
        for b, part in enumerate(parts):
            state = part.state
            past, n_rows = state.n_cells, len(part.tokens)
            end = row + n_rows
            state.table.reserve(past, past + n_rows)
            self._tokens[row:end] = part.tokens
            self._positions[row:end] = numbers[past : past + n_rows]
            self._out_rows[n_out : n_out + part.n_out] = numbers[end - part.n_out : end]
            self._starts[b + 1] = end
            self._slots[b] = state.slot
            self._past[b] = past
            self._replay[b] = state.replay
            self._pages[b] = self._tables[state.slot]
            row, n_out = end, n_out + part.n_out
        n = len(parts)
        return Step(
            tokens=self._tokens[:row],
            positions=self._positions[:row],
            starts=self._starts[: n + 1],
            slots=self._slots[:n],
            past=self._past[:n],
            replay=self._replay[:n],
            pages=self._pages[:n],
            out_rows=self._out_rows[:n_out],
        )
