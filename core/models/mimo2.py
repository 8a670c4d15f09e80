"""MiMo-V2, GGUF architecture `mimo2`: windows with sinks, values narrower than keys.

MTP heads continue from rows before the last norm, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel
from .rope import WINDOWED_ROPE, build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from .model_weights import Weights


class MiMo2(DenseModel):
    norms_hidden = False

    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        windows = read_windows(meta, h)
        value_scale = meta.float("attention.value_scale", 1.0) or 1.0
        everywhere = build_rope(weights, h.key_dim, RopePairs.HALVES)
        nearby = build_rope(weights, h.key_dim, RopePairs.HALVES, WINDOWED_ROPE)

        def of_block(block: int) -> BlockTraits:
            window = windows[block]
            attention = AttentionTraits(sinks=None, window=window, value_scale=value_scale)
            return BlockTraits(nearby if window else everywhere, attention)

        return of_block
