"""Qwen3, GGUF architecture `qwen3`: Qwen2 without biases, with q and k normed per head."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel
from .rope import build_rope
from .self_attention import AttentionTraits

if TYPE_CHECKING:
    from .model_weights import Weights


class Qwen3(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        rope = build_rope(weights, self.hparams.key_dim, RopePairs.HALVES)
        every = BlockTraits(rope, AttentionTraits(head_norms=True))
        return lambda _block: every
