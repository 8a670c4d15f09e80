"""Qwen2 MoE, GGUF architecture `qwen2moe`: Qwen2 with experts, and one that every row goes through.

The weights of chosen experts stay as they are: their sum is less than 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel
from .ffn import FfnTraits, Shared
from .rope import build_rope
from .self_attention import AttentionTraits

if TYPE_CHECKING:
    from .model_weights import Weights


class Qwen2Moe(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        every = BlockTraits(
            build_rope(weights, self.hparams.key_dim, RopePairs.HALVES),
            AttentionTraits(needs_bias=True),
            FfnTraits(shared=Shared.GATED, normalise=False),
        )
        return lambda _block: every
