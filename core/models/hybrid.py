"""The hybrid block of Qwen3-Next and Qwen3.5: Gated DeltaNet or gated attention, then the FFN.

`post_attention_norm` is the norm before the feed-forward layer here, not one after attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..backend.layers import HeadOrder, RopePairs
from .block import BlockBuilder
from .delta_net import DeltaNet
from .dense import PreNormBlock
from .ffn import FfnTraits, Shared, build_ffn
from .model import Model
from .rope import build_rope
from .self_attention import AttentionTraits, SelfAttention

if TYPE_CHECKING:
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


class HybridModel(Model):
    head_order: ClassVar[HeadOrder]

    def block_builder(self, weights: Weights) -> BlockBuilder:
        h = self.hparams
        rope = build_rope(weights, h.key_dim, RopePairs.HALVES)
        attention = AttentionTraits(head_norms=True, gated=True)

        def build(scope: Weights, layout: Layout) -> PreNormBlock:
            mixer: DeltaNet | SelfAttention
            if is_recurrent(h, scope, layout.block):
                mixer = DeltaNet(h, scope, layout, self.head_order)
            else:
                mixer = SelfAttention(h, scope, layout, rope, attention)
            ffn = build_ffn(h, scope, layout.block, FfnTraits(shared=Shared.GATED))
            return PreNormBlock(h, scope, mixer, ffn, "post_attention_norm")

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
