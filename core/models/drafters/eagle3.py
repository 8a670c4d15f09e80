"""EAGLE3, GGUF architecture `eagle3`: one layer over three hidden rows of the target.

An encoder joins the features of a row. The layer reads the embedding of the next token and these
rows side by side; its own rows, before the last norm, stand for them where tokens are drafted.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ...backend.interface import Output, Taps
from ...backend.layers import RopePairs
from ..ffn import DenseFfn
from ..hparams import Hparams
from ..model import block_input
from ..rope import build_rope
from ..self_attention import AttentionTraits, SelfAttention
from .file_ends import FileEnds, check_target, target_layers
from .network import DraftNetwork

if TYPE_CHECKING:
    from ...backend.interface import Backend, Ops, State
    from ...backend.step import Ints, Step
    from ..layout import Layout
    from ..model import Model
    from ..model_weights import Weights

TAP = "eagle3.hidden"
N_TAPS = 3


class Eagle3(DraftNetwork):
    tap = TAP

    def __init__(self, target: Model, weights: Weights, layout: Layout) -> None:
        meta, n_target = weights.file.metadata, target.hparams.n_embd
        h = Hparams.from_gguf(weights.file, target.hparams.n_vocab)
        has_more = h.n_layers != 1, f"it has {h.n_layers} layers, expected 1"
        check_target(target, weights, h, "EAGLE3", has_more)
        self.taps = tuple(map(block_input, target_layers(target, weights, N_TAPS)))
        self.n_embd, self.n_features = h.n_embd, N_TAPS * n_target
        self.norm_before_residual = meta.bool("norm_before_residual", False)
        self.enc_output_norm = None
        if meta.bool("norm_before_fc", False):
            self.enc_output_norm = weights.norm("enc.output_norm", self.n_features, h.eps)
        self.fc = weights.matrix(self.n_features, {"fc": h.n_embd})
        block = weights.scope("blk.0")
        self.attn_norm = block.norm("attn_norm", h.n_embd, h.eps)
        self.attn_norm_2 = block.norm("attn_norm_2", h.n_embd, h.eps)
        rope = build_rope(
            block if block.has("rope_freqs") else weights, h.key_dim, RopePairs.NEIGHBOURS
        )
        layout.block = 0
        # Training pairs tokens with the features of the one before: the first token has no row.
        traits = AttentionTraits(hides_first=True)
        self.mixer = SelfAttention(h, block, layout, rope, traits, n_in=2 * h.n_embd)
        self.ffn_norm = block.norm("ffn_norm", h.n_embd, h.eps)
        self.ffn = DenseFfn(h, block, 0)
        self.output_norm = weights.norm("output_norm", h.n_embd, h.eps)
        self.ends = FileEnds(target, weights, h)
        self.vocab_subset, self.output = self.ends.vocab_subset, self.ends.output

    def encode(self, ops: Ops, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        features, norm = ops.given_rows(step, self.n_features), self.enc_output_norm
        packed = ops.pack(features) if norm is None else ops.norm(features, norm)
        return Output(ops.head(packed, self.fc))

    def forward(self, ops: Ops, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        hidden, table = ops.given_rows(step, self.n_embd), self.ends.token_embd
        e = ops.embed(table, step, takes_rows=self.ends.is_as_wide)
        both = ops.norm_pair(e, self.attn_norm, hidden, self.attn_norm_2)
        x = ops.norm_rows(hidden, self.attn_norm_2) if self.norm_before_residual else hidden
        x = self.mixer(ops, both, x, step, state)
        x = self.ffn(ops, ops.norm(x, self.ffn_norm), x)
        logits = ops.head(ops.norm(ops.out_rows(x, step), self.output_norm), self.output)
        return Output(logits, {TAP: ops.keep(x)} if TAP in wanted else {})

    def shortened(self, backend: Backend, vocab_subset: Ints) -> Eagle3:
        twin = copy(self)
        twin.vocab_subset, twin.output = vocab_subset, self.ends.chosen(backend, vocab_subset)
        return twin
