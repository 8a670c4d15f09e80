"""The ordinary block: attention and feed-forward layer, each behind an RMS norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ffn import build_ffn
from .self_attention import SelfAttention

if TYPE_CHECKING:
    from ..backend.interface import Ops, Rows, State
    from ..backend.layers import RotaryPositions
    from ..backend.step import Step
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


class PreNormBlock:
    def __init__(
        self,
        hparams: Hparams,
        weights: Weights,
        layout: Layout,
        rope: RotaryPositions,
        *,
        head_norms: bool = False,
        needs_bias: bool = False,
    ) -> None:
        self.attn_norm = weights.norm("attn_norm", hparams.n_embd, hparams.eps)
        self.attention = SelfAttention(
            hparams, weights, layout, rope, head_norms=head_norms, needs_bias=needs_bias
        )
        self.ffn_norm = weights.norm("ffn_norm", hparams.n_embd, hparams.eps)
        self.ffn = build_ffn(hparams, weights, layout.block)

    def __call__(self, ops: Ops, x: Rows, step: Step, state: State) -> Rows:
        x = self.attention(ops, ops.norm(x, self.attn_norm), x, step, state)
        return self.ffn(ops, ops.norm(x, self.ffn_norm), x)
