"""Hunyuan, GGUF architectures `hunyuan-dense` and `hunyuan-moe`: heads are turned, then normed."""

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


class Hunyuan(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        every = BlockTraits(
            build_rope(weights, self.hparams.key_dim, RopePairs.HALVES),
            AttentionTraits(head_norms=True, norms_turned=True),
            FfnTraits(shared=Shared.PLAIN),
        )
        return lambda _block: every
