"""Qwen2 and Qwen2.5, GGUF architecture `qwen2`: Llama with rope over halves and q, k, v biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import PreNormBlock
from .model import BlockBuilder, Model
from .rope import build_rope

if TYPE_CHECKING:
    from .layout import Layout
    from .model_weights import Weights


class Qwen2(Model):
    def block_builder(self, weights: Weights) -> BlockBuilder:
        rope = build_rope(weights, self.hparams.key_dim, RopePairs.HALVES)

        def build(scope: Weights, layout: Layout) -> PreNormBlock:
            return PreNormBlock(self.hparams, scope, layout, rope, needs_bias=True)

        return build
