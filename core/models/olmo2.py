"""OLMo 2 and 3, GGUF architecture `olmo2`: norms behind layers, and of all heads at once.

Layers with a window have rope as it was before its context was stretched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel, Mixer, PostNormBlock
from .rope import WINDOWED_ROPE, build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from .block import Ffn
    from .model_weights import Weights

PERIOD = 4  # the last of four layers sees all cells


class Olmo2(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h = self.hparams
        windows = read_windows(weights.file.metadata, h, PERIOD, may_lack=True)
        everywhere = build_rope(weights, h.key_dim, RopePairs.HALVES)
        nearby = build_rope(weights, h.key_dim, RopePairs.HALVES, WINDOWED_ROPE)

        def of_block(block: int) -> BlockTraits:
            window = windows[block]
            attention = AttentionTraits(row_norms=True, window=window)
            return BlockTraits(nearby if window else everywhere, attention)

        return of_block

    def block(self, weights: Weights, mixer: Mixer, ffn: Ffn) -> PostNormBlock:
        return PostNormBlock(self.hparams, weights, mixer, ffn)
