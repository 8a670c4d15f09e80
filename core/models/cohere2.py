"""Command R7B and Command A, GGUF architecture `cohere2`: attention beside the feed-forward layer.

Both read one LayerNorm. Layers that see all cells have no rope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import Norm, RopePairs
from .dense import BlockTraits, DenseModel, Mixer, ParallelBlock
from .rope import build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from .block import Ffn
    from .model_weights import Weights

PERIOD = 4  # the last of four layers sees all cells


class Cohere2(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h = self.hparams
        windows = read_windows(weights.file.metadata, h, PERIOD)
        rope = build_rope(weights, h.key_dim, RopePairs.NEIGHBOURS)

        def of_block(block: int) -> BlockTraits:
            window = windows[block]
            return BlockTraits(rope if window else None, AttentionTraits(window=window))

        return of_block

    def block(self, weights: Weights, mixer: Mixer, ffn: Ffn) -> ParallelBlock:
        return ParallelBlock(self.hparams, weights, mixer, ffn)

    def end_norm(self, weights: Weights) -> Norm:
        h = self.hparams
        scale = weights.file.metadata.float("logit_scale", 1.0, low=1e-6)
        return weights.norm("output_norm", h.n_embd, h.eps, centred=True, scale=scale)
