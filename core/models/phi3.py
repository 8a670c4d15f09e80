"""Phi-3 and Phi-4, GGUF architecture `phi3`: fused matrices, and factors of rope by the context.

Files made for long contexts have two sets of factors. Which one counts is decided once for all
texts, by the context that is asked for, as llama.cpp decides by `-c`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from ..gguf.overrides import with_overrides
from .dense import BlockTraits, DenseModel
from .rope import RopeSpec, build_rope

if TYPE_CHECKING:
    from ..gguf.reader import GgufFile
    from .model_weights import Weights

SHORT, LONG = "rope_factors_short", "rope_factors_long"
ORIGINAL = "rope.scaling.original_context_length"


class Phi3(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        trained = meta.int(ORIGINAL, h.n_ctx_train, low=1)
        chosen, other = (LONG, SHORT) if h.n_ctx_train > trained else (SHORT, LONG)
        weights.leave_out(f"{other}.")
        spec = RopeSpec(factors=chosen)
        every = BlockTraits(build_rope(weights, h.key_dim, RopePairs.HALVES, spec))
        return lambda _block: every

    @classmethod
    def for_context(cls, file: GgufFile, n_ctx: int) -> GgufFile:
        """In a short context its factors are those for short ones. It is another model then, with
        slot files of its own."""
        meta = file.metadata
        if f"{SHORT}.weight" not in file.tensors or not meta.has(ORIGINAL):
            return file
        trained = meta.int("context_length", low=1)
        is_short = n_ctx <= meta.int(ORIGINAL, low=1) < trained
        return with_overrides(file, {meta.full_key(ORIGINAL): trained}) if is_short else file
