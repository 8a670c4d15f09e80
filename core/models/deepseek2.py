"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash: GGUF architecture `deepseek2`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..backend.layers import RopePairs
from .dense import PreNormBlock
from .ffn import FfnTraits, Shared, build_ffn
from .mla import LatentSizes, Mla
from .model import BlockBuilder, Model
from .rope import build_rope, yarn_magnitude

if TYPE_CHECKING:
    from .layout import Layout
    from .model_weights import Weights


class DeepSeek2(Model):
    def block_builder(self, weights: Weights) -> BlockBuilder:
        h, meta = self.hparams, weights.file.metadata
        sizes = LatentSizes.from_keys(weights.file, h)
        rope = build_rope(weights, sizes.rope_dim, RopePairs.NEIGHBOURS)
        rope = replace(rope, magnitude=1.0)  # it scales whole scores instead
        scale = yarn_magnitude(meta) ** 2 * (sizes.plain_dim + sizes.rope_dim) ** -0.5
        ffn = FfnTraits(shared=Shared.PLAIN, normalise=False)

        def build(scope: Weights, layout: Layout) -> PreNormBlock:
            mixer = Mla(h, scope, layout, rope, scale)
            return PreNormBlock(h, scope, mixer, build_ffn(h, scope, layout.block, ffn))

        return build
