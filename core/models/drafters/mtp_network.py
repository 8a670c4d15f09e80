"""Multi-token prediction: one more block that continues from the trunk's final hidden rows.

Before the first token there is no such row: it continues from zeros.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Protocol

from ...backend.interface import Output, Taps
from .network import DraftNetwork, HeadRows

if TYPE_CHECKING:
    from ...backend.interface import Backend, Ops, Rows, State
    from ...backend.layers import Matrix, Norm
    from ...backend.step import Ints, Step
    from ...gguf.reader import GgufFile
    from ..block import Block
    from ..hparams import Hparams
    from ..model_weights import Weights


H_NEXTN = "h_nextn"  # tap: the hidden rows that an MTP head continues from, the trunk's or its own


def hidden_rows(ops: Ops, x: Rows, norm: Norm | None) -> Rows:
    """A tap of the rows that a head continues from."""
    return ops.keep(x) if norm is None else ops.norm_rows(x, norm)


class Trunk(Protocol):
    """What heads share with their model."""

    hparams: Hparams
    token_embd: Matrix
    output: Matrix
    output_norm: Norm
    output_at: tuple[GgufFile, str]  # the file and tensor of the head's rows

    @property
    def norms_hidden(self) -> bool:
        """Whether heads continue from rows behind the last norm, or from those before it."""

    @property
    def head_norm_centred(self) -> bool:
        """The last norm of heads is a LayerNorm."""


class MtpHead(DraftNetwork):
    """Tensors of `blk.N.nextn.`; what a file leaves out is shared with the trunk."""

    taps, tap, encode = (H_NEXTN,), H_NEXTN, None

    def __init__(self, trunk: Trunk, weights: Weights, block: Block) -> None:
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
        self._rows = HeadRows(*trunk.output_at, h.n_vocab, h.n_embd)
        if weights.has("nextn.shared_head_head"):
            self.shared_head_head = weights.matrix(h.n_embd, {"nextn.shared_head_head": h.n_vocab})
            stem = f"{weights.prefix}nextn.shared_head_head"
            self._rows = HeadRows(weights.file, stem, h.n_vocab, h.n_embd)
        self.norms_hidden = trunk.norms_hidden
        self.shared_head_norm = trunk.output_norm
        for name in ("nextn.shared_head_norm", "layer_output_norm"):
            if weights.has(name):
                centred = trunk.head_norm_centred
                self.shared_head_norm = weights.norm(name, h.n_embd, h.eps, centred=centred)
                break

    def shortened(self, backend: Backend, vocab_subset: Ints) -> MtpHead:
        """The same head with logits of these tokens only; it adds a copy of their rows."""
        twin = copy(self)
        twin.vocab_subset = vocab_subset
        twin.shared_head_head = self._rows.chosen(backend, vocab_subset)
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
        norm = self.shared_head_norm if self.norms_hidden else None
        return Output(logits, {H_NEXTN: hidden_rows(ops, x, norm)})
