"""Llama and everything shaped like it (Mistral, Mixtral, ERNIE), GGUF architectures `llama`,
`mistral3` and `ernie4_5`.

The converter permutes the rows of attn_q and attn_k, so that rope turns neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import QueryGrowth, RopePairs
from .dense import BlockTraits, DenseModel
from .rope import RopeSpec, build_rope
from .self_attention import AttentionTraits

if TYPE_CHECKING:
    from .model_weights import Weights


class Llama(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        spec = RopeSpec(divides_magnitude=True)
        growth = None
        if factor := meta.float("attention.temperature_scale", 0.0, low=0.0, high=1e3):
            key = "rope.scaling.original_context_length"
            growth = QueryGrowth(factor, meta.int(key, h.n_ctx_train, low=1))
        every = BlockTraits(
            build_rope(weights, h.key_dim, RopePairs.NEIGHBOURS, spec),
            AttentionTraits(growth=growth),
        )
        return lambda _block: every
