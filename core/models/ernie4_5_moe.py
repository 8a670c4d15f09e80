"""ERNIE 4.5 with experts, GGUF architecture `ernie4_5-moe`: softmax routers with a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import Gating, RopePairs
from .dense import BlockTraits, DenseModel
from .ffn import FfnTraits, Shared
from .rope import build_rope

if TYPE_CHECKING:
    from .model_weights import Weights


class Ernie45Moe(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        rope = build_rope(weights, self.hparams.key_dim, RopePairs.NEIGHBOURS)
        ffn = FfnTraits(shared=Shared.OPTIONAL, gating=Gating.SOFTMAX)
        return lambda _block: BlockTraits(rope, ffn=ffn)
