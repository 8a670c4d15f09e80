"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash: GGUF architecture `deepseek2`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .block import BlockBuilder
from .dense import PreNormBlock
from .ffn import FfnTraits, Shared, build_ffn
from .mla import LatentSizes, Mla, latent_rope
from .model import Model

if TYPE_CHECKING:
    from .layout import Layout
    from .model_weights import Weights


class DeepSeek2(Model):
    def block_builder(self, weights: Weights) -> BlockBuilder:
        h = self.hparams
        rope, scale = latent_rope(weights, LatentSizes.from_keys(weights.file, h))
        ffn = FfnTraits(shared=Shared.PLAIN, normalise=False)

        def build(scope: Weights, layout: Layout) -> PreNormBlock:
            mixer = Mla(h, scope, layout, rope, scale)
            return PreNormBlock(h, scope, mixer, build_ffn(h, scope, layout.block, ffn))

        return build
