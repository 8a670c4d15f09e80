"""EXAONE 4, GGUF architecture `exaone4`: norms behind layers alone, rope where there is a window.

A file without windows has rope everywhere. llama.cpp heeds them in models of 64 layers only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel, Mixer, PostNormBlock
from .rope import RopeSpec, build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from .block import Ffn
    from .model_weights import Weights

PERIOD = 4  # the last of four layers sees all cells


class Exaone4(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h = self.hparams
        windows = read_windows(weights.file.metadata, h, PERIOD, may_lack=True)
        rope = build_rope(weights, h.key_dim, RopePairs.HALVES, RopeSpec("_swa"))
        has_windows = any(windows)

        def of_block(block: int) -> BlockTraits:
            window = windows[block]
            attention = AttentionTraits(head_norms=True, window=window)
            return BlockTraits(rope if window or not has_windows else None, attention)

        return of_block

    def block(self, weights: Weights, mixer: Mixer, ffn: Ffn) -> PostNormBlock:
        return PostNormBlock(self.hparams, weights, mixer, ffn)
