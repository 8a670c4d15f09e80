"""The hybrid block of Qwen3-Next and Qwen3.5: Gated DeltaNet or gated attention, then the FFN.

`post_attention_norm` is the norm before the feed-forward layer here, not one after attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..backend.layers import HeadOrder, RopePairs, RotaryPositions
from .delta_net import DeltaNet
from .ffn import build_ffn
from .model import BlockBuilder, Model
from .rope import build_rope
from .self_attention import SelfAttention

if TYPE_CHECKING:
    from ..backend.interface import Ops, Rows, State
    from ..backend.step import Step
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


class HybridBlock:
    def __init__(
        self,
        hparams: Hparams,
        weights: Weights,
        layout: Layout,
        rope: RotaryPositions,
        order: HeadOrder,
    ) -> None:
        h = hparams
        self.attn_norm = weights.norm("attn_norm", h.n_embd, h.eps)
        self.mixer: DeltaNet | SelfAttention
        if is_recurrent(h, weights, layout.block):
            self.mixer = DeltaNet(h, weights, layout, order)
        else:
            self.mixer = SelfAttention(h, weights, layout, rope, head_norms=True, gated=True)
        self.post_attention_norm = weights.norm("post_attention_norm", h.n_embd, h.eps)
        self.ffn = build_ffn(h, weights, layout.block, shared=True)

    def __call__(self, ops: Ops, x: Rows, step: Step, state: State) -> Rows:
        x = self.mixer(ops, ops.norm(x, self.attn_norm), x, step, state)
        return self.ffn(ops, ops.norm(x, self.post_attention_norm), x)


class HybridModel(Model):
    head_order: ClassVar[HeadOrder]

    def block_builder(self, weights: Weights) -> BlockBuilder:
        rope = build_rope(weights, self.hparams.key_dim, RopePairs.HALVES)

        def build(scope: Weights, layout: Layout) -> HybridBlock:
            return HybridBlock(self.hparams, scope, layout, rope, self.head_order)

        return build


def is_recurrent(hparams: Hparams, weights: Weights, block: int) -> bool:
    """By its tensors; by the keys only where they settle nothing, to name what is missing."""
    recurrent, full = weights.has("ssm_conv1d"), weights.has("attn_q")
    if recurrent != full:
        return recurrent
    if block >= hparams.n_layers:  # MTP blocks are attention
        return False
    meta = weights.file.metadata
    interval = meta.int("full_attention_interval", 4, low=1)
    default = [(i + 1) % interval != 0 for i in range(block + 1)]
    kinds = meta.bools("attention.recurrent_layers", default)
    return kinds[block] if block < len(kinds) else default[block]
