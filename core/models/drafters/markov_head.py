"""DSpark's correction: a product of low rank of the token before, added to the logits of a row.

A confidence head, if there is one, reads the row behind the last norm and the token's vector.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from ...backend.interface import Output, StateRoom, Taps
from ...backend.layers import StateShape
from ...backend.step import token_step
from ...errors import ModelError
from ..hparams import MAX_WIDTH
from .network import BlockPlace, HeadRows, RowCorrection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...backend.interface import Backend, HostOutput, Ops, State
    from ...backend.step import Ints, Step
    from ..hparams import Hparams
    from ..model_weights import Weights
    from .file_ends import FileEnds

VECTOR = "markov.vector"  # tap: the row of markov_w1


class MarkovHead(RowCorrection):
    def __init__(
        self, weights: Weights, h: Hparams, ends: FileEnds, hidden: str, scale: float
    ) -> None:
        """`hidden`: the tap of rows behind the last norm, which are `scale` times these rows."""
        rank = _rank(weights)
        self.markov_w1 = weights.matrix(rank, {"markov_w1": h.n_vocab})
        n_draft = h.n_vocab if ends.vocab_subset is None else len(ends.vocab_subset)
        orders = None if ends.order is None else {"markov_w2": ends.order}
        self.markov_w2 = weights.matrix(rank, {"markov_w2": n_draft}, row_orders=orders)
        self._rows = HeadRows(weights.file, "markov_w2", n_draft, rank)
        self._hidden, self.conf_proj = hidden, None
        meta = weights.file.metadata
        if meta.bool("has_confidence_head", weights.has("conf_proj")):
            proj = weights.floats("conf_proj.weight", 1, h.n_embd + rank)[0]
            self.conf_proj = proj[: h.n_embd] / scale, proj[h.n_embd :]
            bias = weights.has_tensor("conf_proj.bias")
            self.conf_bias = float(weights.floats("conf_proj.bias", 1)[0]) if bias else 0.0
        self.taps = frozenset({hidden}) if self.conf_proj else frozenset()

    def shortened(self, backend: Backend, vocab_subset: Ints) -> MarkovHead:
        twin = copy(self)
        twin.markov_w2 = self._rows.chosen(backend, vocab_subset)
        return twin

    def compile(self, backend: Backend, max_rows: int) -> None:
        taps = frozenset({VECTOR}) if self.conf_proj else frozenset()
        state = backend.new_state(StateShape(()), StateRoom(1, 16, 1, 1))
        self._run = backend.compile(self.forward, state, max_rows=max_rows, taps=taps)

    def forward(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        vectors = ops.embed(self.markov_w1, step)
        taps = {VECTOR: ops.keep(vectors)} if VECTOR in wanted else {}
        return Output(ops.head(ops.pack(vectors), self.markov_w2), taps)

    def correct(self, tokens: Ints, output: HostOutput, at: Sequence[BlockPlace]) -> list[float]:
        added = self._run(token_step(tokens))
        for i, place in enumerate(at):
            output.logits[place.out] += added.logits[i]
        if self.conf_proj is None:
            return []
        of_hidden, of_vector = self.conf_proj
        rows = output.taps[self._hidden][[place.row for place in at]]
        scores = rows @ of_hidden + added.taps[VECTOR] @ of_vector + self.conf_bias
        chances: list[float] = (1 / (1 + np.exp(-scores.astype(np.float64)))).tolist()
        return chances


def _rank(weights: Weights) -> int:
    tensor = weights.file.tensors["markov_w1.weight"]
    if len(tensor.shape) != 2 or not 0 < tensor.shape[1] <= MAX_WIDTH:
        raise ModelError(
            f"{weights.file.label}: markov_w1.weight has shape {tensor.shape}, expected "
            "(vocabulary, rank)"
        )
    return tensor.shape[1]
