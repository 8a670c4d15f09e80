"""EAGLE3 and EAGLE-3.1, GGUF architecture `eagle3`: a layer or more over hidden rows of the target.

An encoder joins the features of a row. The first layer reads the embedding of the next token and
these rows side by side; the rows of the last one, before the last norm or behind it (3.1), stand
for them where tokens are drafted.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ...backend.interface import Output, Taps
from ...backend.layers import RopePairs
from ..ffn import DenseFfn
from ..hparams import Hparams
from ..mla import LatentSizes, Mla, latent_rope
from ..model import block_input
from ..rope import build_rope
from ..self_attention import AttentionTraits, SelfAttention
from ..window_keys import read_windows
from .file_ends import FileEnds, check_target, target_layers
from .network import DraftNetwork

if TYPE_CHECKING:
    from ...backend.interface import Backend, Ops, Packed, Rows, State
    from ...backend.layers import Norm
    from ...backend.step import Ints, Step
    from ..layout import Layout
    from ..model import Model
    from ..model_weights import Weights

TAP = "eagle3.hidden"


class Eagle3(DraftNetwork):
    tap = TAP

    def __init__(self, target: Model, weights: Weights, layout: Layout) -> None:
        meta = weights.file.metadata
        h = Hparams.from_gguf(weights.file, target.hparams.n_vocab)
        check_target(target, weights, h, "EAGLE3")
        layers = target_layers(target, weights)
        self.taps = tuple(map(block_input, layers))
        self.n_embd, self.n_features = h.n_embd, len(layers) * target.hparams.n_embd
        self.norms_residual = meta.bool("norm_before_residual", False)
        self.feeds_normed = meta.bool("norm_output", False)
        # Of a checkpoint whose trainer has changed what norm_output means.
        self.is_unsure = meta.bool("norm_output_unsure", False)
        self.feature_norms = _feature_norms(weights, h, len(layers), target.hparams.n_embd)
        self.fc = weights.matrix(self.n_features, {"fc": h.n_embd})
        windows = read_windows(meta, h, may_lack=True)
        self.blk = []
        for layout.block in range(h.n_layers):
            n_in = h.n_embd if layout.block else 2 * h.n_embd
            mixer = _attention(h, weights, layout, windows[layout.block], n_in)
            scope = weights.scope(f"blk.{layout.block}")
            self.blk.append(Eagle3Block(h, scope, mixer, layout.block))
        self.hidden_norm = weights.scope("blk.0").norm("attn_norm_2", h.n_embd, h.eps)
        self.output_norm = weights.norm("output_norm", h.n_embd, h.eps)
        self.ends = FileEnds(target, weights, h)
        self.vocab_subset, self.output = self.ends.vocab_subset, self.ends.output

    def encode(self, ops: Ops, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        features = ops.given_rows(step, self.n_features)
        if len(self.feature_norms) == 1:
            packed = ops.norm(features, self.feature_norms[0])
        else:
            column = 0
            for norm in self.feature_norms:
                features = ops.norm_columns(features, norm, column)
                column += self.n_features // len(self.feature_norms)
            packed = ops.pack(features)
        return Output(ops.head(packed, self.fc))

    def forward(self, ops: Ops, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        hidden, table = ops.given_rows(step, self.n_embd), self.ends.token_embd
        e = ops.embed(table, step, takes_rows=self.ends.is_as_wide)
        first, *others = self.blk
        both = ops.norm_pair(e, first.attn_norm, hidden, self.hidden_norm)
        x = ops.norm_rows(hidden, self.hidden_norm) if self.norms_residual else hidden
        x = first(ops, both, x, step, state)
        for block in others:
            x = block(ops, ops.norm(x, block.attn_norm), x, step, state)
        taps = {}
        if TAP in wanted:
            taps[TAP] = ops.norm_rows(x, self.output_norm) if self.feeds_normed else ops.keep(x)
        logits = ops.head(ops.norm(ops.out_rows(x, step), self.output_norm), self.output)
        return Output(logits, taps)

    def shortened(self, backend: Backend, vocab_subset: Ints) -> Eagle3:
        twin = copy(self)
        twin.vocab_subset, twin.output = vocab_subset, self.ends.chosen(backend, vocab_subset)
        return twin


class Eagle3Block:
    """Attention of normed rows, then a feed-forward layer."""

    def __init__(
        self, hparams: Hparams, weights: Weights, mixer: SelfAttention | Mla, block: int
    ) -> None:
        h, self.mixer = hparams, mixer
        self.attn_norm, self.ffn_norm = (
            weights.norm(name, h.n_embd, h.eps) for name in ("attn_norm", "ffn_norm")
        )
        self.ffn = DenseFfn(h, weights, block)

    def __call__(self, ops: Ops, a: Packed, x: Rows, step: Step, state: State) -> Rows:
        x = self.mixer(ops, a, x, step, state)
        return self.ffn(ops, ops.norm(x, self.ffn_norm), x)


def _attention(
    h: Hparams, weights: Weights, layout: Layout, window: int, n_in: int
) -> SelfAttention | Mla:
    """Training pairs tokens with the features of the one before: the first token has no row."""
    scope = weights.scope(f"blk.{layout.block}")
    if scope.has("attn_kv_a_mqa"):
        rope, scale = latent_rope(weights, LatentSizes.from_keys(weights.file, h))
        return Mla(h, scope, layout, rope, scale, n_in=n_in, hides_first=True)
    rope = build_rope(
        scope if scope.has("rope_freqs") else weights, h.key_dim, RopePairs.NEIGHBOURS
    )
    traits = AttentionTraits(head_norms=None, window=window, hides_first=True)
    return SelfAttention(h, scope, layout, rope, traits, n_in=n_in)


def _feature_norms(weights: Weights, h: Hparams, n_taps: int, width: int) -> list[Norm]:
    """Of the features before they are joined: one over all of them, or one for each tap (3.1)."""
    meta = weights.file.metadata
    if meta.bool("fc_norm", weights.has("fc_norm.0")):
        return [weights.norm(f"fc_norm.{i}", width, h.eps) for i in range(n_taps)]
    if meta.bool("norm_before_fc", False):
        return [weights.norm("enc.output_norm", n_taps * width, h.eps)]
    return []
