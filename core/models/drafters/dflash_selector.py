"""DFlash2's selector: of the best tokens of a row, the one that goes with the token before.

The score of a candidate is its logit, plus a product of its vector with that of the token before,
element by element times a gate that the row's hidden state makes. Other tokens are impossible.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from ...backend.interface import Output, StateRoom, Taps
from ...backend.layers import StateShape
from ...backend.step import token_step
from ..hparams import MAX_WIDTH
from .network import BlockPlace, RowCorrection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...backend.interface import Backend, Forward, HostOutput, Ops, Run, State
    from ...backend.layers import Floats, Matrix
    from ...backend.step import Ints, Step
    from ..hparams import Hparams
    from ..model_weights import Weights
    from .file_ends import FileEnds

MAX_CANDIDATES = 64


class Selector(RowCorrection):
    def __init__(
        self, weights: Weights, h: Hparams, ends: FileEnds, hidden: str, scale: float
    ) -> None:
        """`hidden`: the tap of rows behind the last norm, which are `scale` times these rows."""
        meta = weights.file.metadata
        rank = meta.int("selector_rank", low=1, high=MAX_WIDTH)
        self.top_k = meta.int("selector_top_k", low=1, high=MAX_CANDIDATES)
        self.predecessor = weights.matrix(rank, {"selector_predecessor": h.n_vocab})
        self.successor = weights.matrix(rank, {"selector_successor": h.n_vocab})
        self.gate = weights.floats("selector_hidden.weight", rank, h.n_embd) / np.float32(scale)
        self.vocab_subset, self._hidden = ends.vocab_subset, hidden
        self.taps = frozenset({hidden})

    def shortened(self, backend: Backend, vocab_subset: Ints) -> Selector:
        twin = copy(self)
        twin.vocab_subset = vocab_subset
        return twin

    def compile(self, backend: Backend, max_rows: int) -> None:
        state = backend.new_state(StateShape(()), StateRoom(1, 16, 1, 1))

        def rows_of(table: Matrix, n_rows: int) -> Run:
            return backend.compile(_look_up(table), state, max_rows=n_rows, taps=_VECTORS)

        self._before = rows_of(self.predecessor, max_rows)
        self._candidates = rows_of(self.successor, max_rows * self.top_k)

    def correct(self, tokens: Ints, output: HostOutput, at: Sequence[BlockPlace]) -> list[float]:
        logits = output.logits[[place.out for place in at]]
        best = _best(logits, self.top_k)
        ids = best if self.vocab_subset is None else self.vocab_subset[best]
        hidden = output.taps[self._hidden][[place.row for place in at]]
        before = self._before(token_step(tokens, with_logits=False)).taps[_VECTOR]
        gated = hidden @ self.gate.T * before
        step = token_step(ids.reshape(-1).astype(np.int32), with_logits=False)
        vectors = self._candidates(step).taps[_VECTOR].reshape(*ids.shape, -1)
        scores = np.take_along_axis(logits, best, 1) + (vectors @ gated[:, :, None])[:, :, 0]
        for place, chosen, row in zip(at, best, scores, strict=True):
            output.logits[place.out] = -np.inf
            output.logits[place.out, chosen] = row
        return []


_VECTOR = "selector.vector"
_VECTORS: Taps = frozenset({_VECTOR})


def _look_up(table: Matrix) -> Forward:
    def forward(ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        vectors = ops.embed(table, step)
        last = ops.pack(ops.out_rows(vectors, step))  # of no row: every pass ends in a head
        return Output(ops.head(last, table), {_VECTOR: ops.keep(vectors)})

    return forward


def _best(logits: Floats, k: int) -> Ints:
    """Columns of the best k of each row, the best first; of equals, the earlier."""
    k = min(k, logits.shape[1])
    found = np.sort(np.argpartition(-logits, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(logits, found, 1), axis=1, kind="stable")
    return np.take_along_axis(found, order, 1).astype(np.int32)
