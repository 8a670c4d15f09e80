"""Llama and everything shaped like it (Mistral, Mixtral), GGUF architecture `llama`.

The converter permutes the rows of attn_q and attn_k, so that rope turns neighbouring elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import PreNormBlock
from .model import BlockBuilder, Model
from .rope import build_rope

if TYPE_CHECKING:
    from .layout import Layout
    from .model_weights import Weights


class Llama(Model):
    def block_builder(self, weights: Weights) -> BlockBuilder:
        rope = build_rope(weights, self.hparams.key_dim, RopePairs.NEIGHBOURS)

        def build(scope: Weights, layout: Layout) -> PreNormBlock:
            return PreNormBlock(self.hparams, scope, layout, rope)

        return build
