"""GLM-4.5, 4.6 and 4.7, GGUF architecture `glm4moe`: rope over half of a head, sigmoid routers.

`post_attention_norm` is the norm before the feed-forward layer.
"""

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


class Glm4Moe(DenseModel):
    ffn_norm = "post_attention_norm"

    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        every = BlockTraits(
            build_rope(weights, self.hparams.key_dim, RopePairs.HALVES),
            AttentionTraits(head_norms=None),
            FfnTraits(shared=Shared.PLAIN, normalise=False),
        )
        return lambda _block: every
