"""Passes of a backend over rows of a tower: products and norms on its kernels, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec.structs import replace

from ..backend.interface import Backend, Ops, Output, Rows, State, StateRoom, Taps
from ..backend.layers import Floats, StateShape
from ..backend.step import Step, token_step
from ..state.sizes import PAGE_LEN

ROWS_AT_ONCE: Final = 256
RowPass = Callable[[Ops, Rows], Mapping[str, Rows]]  # named rows made of the given ones


class RowPasses:
    """A pass is compiled when it is run, so that there is working memory of one at a time: its
    kernels are there since the first one of its kind."""

    def __init__(self, backend: Backend | None) -> None:
        """`backend`: None for a tower that never runs."""
        self._given = backend

    @property
    def n_threads(self) -> int:
        return self._backend.host_threads

    @property
    def _backend(self) -> Backend:
        assert self._given is not None, "a survey does not run"
        return self._given

    @cached_property
    def _state(self) -> State:
        """What forward passes need, although nothing here is kept."""
        room = StateRoom(n_pages=1, page_len=PAGE_LEN, n_slots=1, window=1)
        return self._backend.new_state(StateShape(()), room)

    def run(self, make: RowPass, rows: Floats, **widths: int) -> Iterator[dict[str, Floats]]:
        """Yields once for each piece; the last one yields all rows that `make` names, of these
        widths."""
        made = {name: np.empty((len(rows), width), np.float32) for name, width in widths.items()}
        at_once = min(ROWS_AT_ONCE, len(rows))

        def forward(ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
            found = make(ops, ops.given_rows(step, rows.shape[1]))
            return Output(ops.out_rows(found[next(iter(widths))], step), dict(found))

        taps = frozenset(widths)
        run = self._backend.compile(forward, self._state, max_rows=at_once, taps=taps)
        for first in range(0, len(rows), at_once):
            piece = np.ascontiguousarray(rows[first : first + at_once], np.float32)
            step = token_step(np.zeros(len(piece), np.int32), with_logits=False)
            found = run(replace(step, hidden=piece)).taps
            for name, out in made.items():
                out[first : first + len(piece)] = found[name]
            yield made
