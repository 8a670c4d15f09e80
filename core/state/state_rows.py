"""Rows of several sequences as the `Step` that a model runs, written into arrays made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..backend.step import Ints, Step, StepArrays
from .embedded_rows import ModelPrompt
from .store import SequenceState, StateStore

_FEW: Final = 16  # tokens of a sequence that are written one by one


class EmbeddedSteps:
    """Steps of which some rows are embedded ones."""

    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        self.begin()

    def begin(self) -> None:
        self._has_embedded = False
        self._axes: list[tuple[slice, Ints]] = []
        self._ahead: list[tuple[slice, Ints]] = []

    def add(self, prompt: ModelPrompt, first: int, rows: slice) -> None:
        """Places of a prompt from `first` on, and their positions, into these rows of the step."""
        arrays = self._arrays
        positions = prompt.positions(first, rows.stop - rows.start)
        arrays.positions[rows] = positions[:, 0]
        embedded = arrays.embedded(prompt.runs[0].rows.shape[1])
        self._has_embedded |= prompt.copy_rows(first, embedded[rows])
        if prompt.has_axes:
            self._axes.append((rows, positions))
        ahead = prompt.ahead(first, rows.stop - rows.start)
        if ahead is not None:
            self._ahead.append((rows, ahead))

    def step(self, n_rows: int, n_sequences: int, n_out: int = 0) -> Step:
        if self._axes:  # others turn by one position
            axes = self._arrays.axes()
            axes[:n_rows] = self._arrays.positions[:n_rows, None]
            for rows, positions in self._axes:
                axes[rows] = positions
        if self._ahead:
            others = self._arrays.ahead()
            others[:n_rows] = 0
            for rows, ahead in self._ahead:
                others[rows] = ahead
        return self._arrays.step(
            n_rows,
            n_sequences,
            n_out,
            has_embedded=self._has_embedded,
            has_axes=bool(self._axes),
            has_ahead=bool(self._ahead),
        )


class StateRows:
    """Call `begin`, `add` for each sequence, then `step`, which is valid until the next `begin`.

    Numbers are written through views of the memory: each call of numpy takes 5 to 10 us when the
    weights of a step have just flushed the caches.
    """

    def __init__(self, store: StateStore, max_rows: int) -> None:
        sizes = store.sizes
        self._tables = store.tables
        self._windowed_tables = store.windowed_tables
        arrays = self._arrays = StepArrays(
            max_rows,
            sizes.n_slots,
            sizes.pages_per_slot,
            windowed=store.windowed_tables is not None,
        )
        self._embedded = EmbeddedSteps(arrays)
        self._numbers = np.arange(max(sizes.n_ctx, max_rows) + 1, dtype=np.int32).data
        self._tokens, self._positions, self._out_rows = (
            array.data for array in (arrays.tokens, arrays.positions, arrays.out_rows)
        )
        self._starts, self._past, self._replay = (
            array.data for array in (arrays.starts, arrays.past, arrays.n_pending_accepted)
        )
        # The sequence whose slot and pages are at each place, and the change as of which.
        self._held: list[tuple[SequenceState | None, int]] = [(None, 0)] * sizes.n_slots
        self.begin()

    def begin(self) -> None:
        self._n_rows = self._n_out = self._n_sequences = 0
        self._embedded.begin()

    def add(
        self, state: SequenceState, tokens: Sequence[int], n_out: int, request: int = 0
    ) -> None:
        """The next tokens of a sequence, with logits of the last `n_out`. Makes sure that every
        row has a cell to write to. `request`: always the same for a state; see `Step.requests`."""
        b, row, past, table = self._n_sequences, self._n_rows, state.n_cells, state.table
        end = row + len(tokens)
        next_past = past + len(tokens)
        table.reserve(past, next_past)
        held, n_changes = self._held[b]
        if held is not state or n_changes != table.n_changes:
            self._hold(b, state, request)
        if len(tokens) <= _FEW:
            for at, token in enumerate(tokens, row):
                self._tokens[at] = token
        else:
            self._arrays.tokens[row:end] = tokens
        if state.prompt is None:
            self._positions[row:end] = self._numbers[past:next_past]
        else:
            self._embed(state.prompt, past, slice(row, end))
        n = self._n_out + n_out
        self._out_rows[self._n_out : n] = self._numbers[end - n_out : end]
        self._past[b], self._replay[b] = past, state.n_pending_accepted
        self._n_rows, self._n_out, self._n_sequences = end, n, b + 1
        self._starts[b + 1] = end

    def step(self) -> Step:
        return self._embedded.step(self._n_rows, self._n_sequences, self._n_out)

    def _embed(self, prompt: ModelPrompt, first: int, rows: slice) -> None:
        if first < prompt.end_of_rows:
            self._embedded.add(prompt, first, rows)
            return
        first -= prompt.n_shared
        self._positions[rows] = self._numbers[first : first + rows.stop - rows.start]

    def _hold(self, b: int, state: SequenceState, request: int) -> None:
        arrays = self._arrays
        arrays.slots[b], arrays.requests[b] = state.slot, request
        arrays.pages[b] = self._tables[state.slot]
        if arrays.windowed_pages is not None and self._windowed_tables is not None:
            arrays.windowed_pages[b] = self._windowed_tables[state.slot]
        self._held[b] = state, state.table.n_changes
