"""A plan as arrays: the `Step` that the model runs, written into buffers made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..backend.step import Ints, Step, StepArrays
from ..state.store import SequenceState
from .config import EngineConfig
from .scheduler import Part

_FEW: Final = 16  # rows of a sequence that are written one by one


class Batch:
    """Numbers are written through views of the memory: each call of numpy takes 5 to 10 us when
    the weights of a step have just flushed the caches."""

    def __init__(self, config: EngineConfig, tables: Ints) -> None:
        """`tables`: the page table of each slot, (slots, P)."""
        self._tables = tables
        sizes = config.sizes
        n_rows, n_slots = config.max_rows, sizes.n_slots
        arrays = self._arrays = StepArrays(n_rows, n_slots, sizes.pages_per_slot)
        self._numbers = np.arange(max(sizes.n_ctx, n_rows) + 1, dtype=np.int32)
        self._tokens, self._positions, self._out_rows = (
            array.data for array in (arrays.tokens, arrays.positions, arrays.out_rows)
        )
        self._starts, self._past, self._replay = (
            array.data for array in (arrays.starts, arrays.past, arrays.replay)
        )
        # Whose slot and pages lie at each place, and as of which change.
        self._held: list[tuple[SequenceState | None, int]] = [(None, 0)] * n_slots

    def build(self, parts: Sequence[Part]) -> Step:
        """Valid until the next call. Makes sure that every row has a cell to write to."""
        row = n_out = b = 0
        for part in parts:
            state, n_rows = part.state, len(part.tokens)
            past, table = state.n_cells, state.table
            table.reserve(past, past + n_rows)
            held, n_changes = self._held[b]
            if held is not state or n_changes != table.n_changes:
                self._hold(b, part)
            self._past[b], self._replay[b] = past, state.replay
            if n_rows <= _FEW:
                self._write_rows(part, row, past, n_out)
            else:
                self._write_many(part, row, past, n_out)
            row, n_out, b = row + n_rows, n_out + part.n_out, b + 1
            self._starts[b] = row
        return self._arrays.step(row, b, n_out)

    def _hold(self, b: int, part: Part) -> None:
        arrays, state = self._arrays, part.state
        arrays.slots[b], arrays.requests[b] = state.slot, part.sequence.request
        arrays.pages[b] = self._tables[state.slot]
        self._held[b] = state, state.table.n_changes

    def _write_rows(self, part: Part, row: int, past: int, n_out: int) -> None:
        tokens, positions, out_rows = self._tokens, self._positions, self._out_rows
        for token in part.tokens:
            tokens[row], positions[row] = token, past
            row, past = row + 1, past + 1
        for out_row in range(row - part.n_out, row):
            out_rows[n_out] = out_row
            n_out += 1

    def _write_many(self, part: Part, row: int, past: int, n_out: int) -> None:
        arrays, numbers, n_rows = self._arrays, self._numbers, len(part.tokens)
        end = row + n_rows
        arrays.tokens[row:end] = part.tokens
        arrays.positions[row:end] = numbers[past : past + n_rows]
        arrays.out_rows[n_out : n_out + part.n_out] = numbers[end - part.n_out : end]
