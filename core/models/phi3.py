"""Phi-3 and Phi-4, GGUF architecture `phi3`: fused matrices, and factors of rope by the context."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel
from .rope import RopeSpec, build_rope

if TYPE_CHECKING:
    from .model_weights import Weights

SHORT, LONG = "rope_factors_short", "rope_factors_long"


class Phi3(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        """The factors are those of the whole context, as llama.cpp takes them without `-c`."""
        h, meta = self.hparams, weights.file.metadata
        trained = meta.int("rope.scaling.original_context_length", h.n_ctx_train, low=1)
        chosen, other = (LONG, SHORT) if h.n_ctx_train > trained else (SHORT, LONG)
        weights.leave_out(f"{other}.")
        spec = RopeSpec(factors=chosen)
        every = BlockTraits(build_rope(weights, h.key_dim, RopePairs.HALVES, spec))
        return lambda _block: every
