"""Multi-token prediction: one more block that continues from the trunk's final hidden rows.

Position 0 has no row, as in the models' own training code.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ...backend.interface import Output, Taps
from ..model_weights import Weights, choose_rows
from .network import DraftNetwork

if TYPE_CHECKING:
    from ...backend.interface import Backend, Ops, State
    from ...backend.step import Ints, Step
    from ..model import Block, Model


H_NEXTN = "h_nextn"  # tap: the hidden rows that an MTP head continues from, the trunk's or its own


class MtpHead(DraftNetwork):
    """Tensors of `blk.N.nextn.`; what a file leaves out is shared with the trunk."""

    taps, tap, encode = (H_NEXTN,), H_NEXTN, None

    def __init__(self, trunk: Model, weights: Weights, block: Block) -> None:
        h = trunk.hparams
        self.block = block
        self.vocab_subset: Ints | None = None
        self.n_embd = self.n_features = h.n_embd
        self.eh_proj = weights.matrix(2 * h.n_embd, {"nextn.eh_proj": h.n_embd})
        self.enorm = weights.norm("nextn.enorm", h.n_embd, h.eps)
        self.hnorm = weights.norm("nextn.hnorm", h.n_embd, h.eps)
        self.embed_tokens = trunk.token_embd
        if weights.has("nextn.embed_tokens"):
            self.embed_tokens = weights.matrix(h.n_embd, {"nextn.embed_tokens": h.n_vocab})
        self.shared_head_head = trunk.output
        # Where its rows are stored, for `shortened`.
        (self._file, self._head_stem), self._n_vocab = trunk.output_at, h.n_vocab
        if weights.has("nextn.shared_head_head"):
            self.shared_head_head = weights.matrix(h.n_embd, {"nextn.shared_head_head": h.n_vocab})
            self._file, self._head_stem = weights.file, f"{weights.prefix}nextn.shared_head_head"
        self.shared_head_norm = trunk.output_norm
        for name in ("nextn.shared_head_norm", "layer_output_norm"):
            if weights.has(name):
                self.shared_head_norm = weights.norm(name, h.n_embd, h.eps)
                break

    def shortened(self, backend: Backend, vocab_subset: Ints) -> MtpHead:
        """The same head with logits of these tokens only; it adds a copy of their rows.

        Few tokens make up most of what a model writes, and the output matrix is most of what a
        drafted token costs.
        """
        part = Weights(self._file, backend).part(self._head_stem, self._n_vocab, self.n_embd)
        assert part is not None, "the file was checked when it was loaded"
        twin = copy(self)
        twin.vocab_subset = vocab_subset
        twin.shared_head_head = backend.matrix([choose_rows(part, vocab_subset)])
        return twin

    def forward(self, ops: Ops, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        """`step.hidden` (T, D) belongs to the position before each token of the step."""
        hidden = ops.given_rows(step, self.n_embd)
        e = ops.embed(self.embed_tokens, step)
        x = ops.matmul(ops.norm_pair(e, self.enorm, hidden, self.hnorm), self.eh_proj)
        x = self.block(ops, x, step, state)
        last = ops.norm(ops.out_rows(x, step), self.shared_head_norm)
        logits = ops.head(last, self.shared_head_head)
        if H_NEXTN not in wanted:
            return Output(logits)
        return Output(logits, {H_NEXTN: ops.norm_rows(x, self.shared_head_norm)})
