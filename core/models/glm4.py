"""GLM-4-0414, GGUF architecture `glm4`: norms before and behind each layer, rope over half a head.

Files of the vision models have rope over halves, and say so by the sections of their positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel, Mixer, SandwichBlock
from .rope import build_rope

if TYPE_CHECKING:
    from .block import Ffn
    from .model_weights import Weights


class Glm4(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        has_sections = weights.file.metadata.has("rope.dimension_sections")
        pairs = RopePairs.HALVES if has_sections else RopePairs.NEIGHBOURS
        every = BlockTraits(build_rope(weights, self.hparams.key_dim, pairs))
        return lambda _block: every

    def block(self, weights: Weights, mixer: Mixer, ffn: Ffn) -> SandwichBlock:
        return SandwichBlock(self.hparams, weights, mixer, ffn)
