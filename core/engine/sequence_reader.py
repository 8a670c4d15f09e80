"""Reads whole sequences without the scheduler: the rows that a model leaves, and no next token."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from typing import Final

import numpy as np
from msgspec.structs import replace

from ..backend.interface import Backend, HostOutput, StateRoom, Taps
from ..backend.layers import Floats
from ..backend.step import Step, StepPart, build_step
from ..models.adapters import scales_of
from ..models.model import Model
from ..state.embedded_rows import ModelPrompt
from ..state.sizes import PAGE_LEN

NO_ROW: Final = 1 << 62  # behind the last row of every sequence


class SequenceReader:
    """Compiled and given memory once, for sequences of up to `n_tokens` that follow each other.

    At most `n_rows` rows are run at once, so that logits of a large vocabulary stay few.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        n_tokens: int,
        n_rows: int,
        taps: Taps = frozenset(),
    ) -> None:
        self._pages, self._n_rows = range(-(-n_tokens // PAGE_LEN)), min(n_rows, n_tokens)
        # Of any length, so that one page table for all layers will do.
        shape = model.state_shape.without_windows()
        room = StateRoom(
            n_pages=len(self._pages),
            page_len=PAGE_LEN,
            n_slots=1,
            window=1,
            n_adapters=len(model.adapters or ()),
        )
        state = backend.new_state(shape, room)
        self._adapters, self._state = model.adapters, state
        self._width = model.hparams.row_width
        self._run = backend.compile(model.forward, state, max_rows=self._n_rows, taps=taps)

    def logits(self, token_ids: Tokens[int] | ModelPrompt, first_row: int = 0) -> Iterator[Floats]:
        """Yield the logits of the rows from `first_row` on, in pieces that hold until the next."""
        pieces = self._pieces(token_ids)
        for (_, end), output in zip(pieces, self.outputs(token_ids, first_row), strict=True):
            if end > first_row:
                yield output.logits

    def outputs(
        self, token_ids: Tokens[int] | ModelPrompt, first_row: int = NO_ROW
    ) -> Iterator[HostOutput]:
        """Yield what each piece of a sequence leaves, good until the next.

        Rows before `first_row` have no logits, but for the last one of a piece of such rows.
        """
        if self._adapters is not None:
            self._state.adapter_scales.set(0, scales_of(self._adapters))
        for first, end in self._pieces(token_ids):
            tokens = token_ids[first:end]
            # After the first piece one accepted row is pending.
            piece = StepPart(
                tokens,
                first,
                self._pages,
                n_pending_accepted=int(first > 0),
                n_out=min(len(tokens), max(1, first + len(tokens) - first_row)),
            )
            step = build_step([piece])
            if isinstance(token_ids, ModelPrompt) and token_ids.runs:
                step = self._embedded(step, token_ids, first)
            yield self._run(step)

    def _pieces(self, token_ids: Tokens[int] | ModelPrompt) -> Iterator[tuple[int, int]]:
        """Where each begins and ends."""
        first = 0
        while first < len(token_ids):
            end = min(first + self._n_rows, len(token_ids))
            if isinstance(token_ids, ModelPrompt):
                end = token_ids.end_of_piece(first, end)
            yield first, end
            first = end

    def _embedded(self, step: Step, prompt: ModelPrompt, first: int) -> Step:
        positions = prompt.positions(first, step.n_rows)
        rows = np.zeros((step.n_rows, self._width), np.float32)
        prompt.copy_rows(first, rows)
        return replace(
            step,
            positions=np.ascontiguousarray(positions[:, 0]),
            axes=positions if prompt.has_axes else None,
            ahead=prompt.ahead(first, step.n_rows),
            embedded=rows,
        )
