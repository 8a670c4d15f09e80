"""Qwen2 and Qwen2.5, GGUF architecture `qwen2`: Llama with rope over halves and q, k, v biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel
from .rope import build_rope
from .self_attention import AttentionTraits

if TYPE_CHECKING:
    from .model_weights import Weights


class Qwen2(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        rope = build_rope(weights, self.hparams.key_dim, RopePairs.HALVES)
        every = BlockTraits(rope, AttentionTraits(needs_bias=True))
        return lambda _block: every
