"""K-EXAONE, GGUF architecture `exaone-moe`: rope only where a row sees a window of cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel
from .ffn import FfnTraits, Shared
from .rope import RopeSpec, build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from .model_weights import Weights

PERIOD = 4  # the last of four layers sees all cells


class ExaoneMoe(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        windows = read_windows(meta, h, PERIOD)
        rope = build_rope(weights, h.key_dim, RopePairs.HALVES, RopeSpec("_swa"))
        ffn = FfnTraits(shared=Shared.PLAIN, normalise=False)

        def of_block(block: int) -> BlockTraits:
            window = windows[block]
            attention = AttentionTraits(head_norms=True, window=window)
            return BlockTraits(rope if window else None, attention, ffn)

        return of_block
