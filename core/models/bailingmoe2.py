"""Ling and Ring 2.0, GGUF architecture `bailingmoe2`: rope over half of a head, sigmoid routers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import Gating, RopePairs
from .dense import BlockTraits, DenseModel
from .ffn import FfnTraits, Shared
from .rope import build_rope
from .self_attention import AttentionTraits

if TYPE_CHECKING:
    from .model_weights import Weights


class BailingMoe2(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        every = BlockTraits(
            build_rope(weights, self.hparams.key_dim, RopePairs.HALVES),
            AttentionTraits(head_norms=True),
            FfnTraits(shared=Shared.PLAIN, gating=Gating.SIGMOID),
        )
        return lambda _block: every
