"""Llama 4, the text part, GGUF architecture `llama4`: chunks of cells with rope, every fourth layer
without either, and experts whose weights multiply what they read.

No key says how long a chunk is, nor how queries grow where there is no rope: keys of windows and of
temperatures, which llama.cpp does not read here, stand for other values than the models'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import Gating, QueryGrowth, RopePairs
from ..errors import ModelError
from .dense import BlockTraits, DenseModel
from .ffn import FfnTraits, Shared
from .rope import build_rope
from .self_attention import AttentionTraits

if TYPE_CHECKING:
    from .model_weights import Weights

PERIOD = 4  # the last of four layers sees all cells, and has no rope
CHUNK = 8192  # cells
GROWTH = 0.1
WITHOUT_NORMS = 128  # experts of the model whose heads are not normed


class Llama4(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        chunk = meta.int("attention.sliding_window", CHUNK)
        if not chunk:
            raise ModelError(
                f"{weights.file.label}: {meta.full_key('attention.sliding_window')} is 0: Llama 4 "
                "without chunks cannot be run"
            )
        growth = None
        if factor := meta.float("attention.temperature_scale", GROWTH, low=0.0, high=1e3):
            length = meta.int("attention.temperature_length", CHUNK, low=1)
            growth = QueryGrowth(factor, length, ahead=1)
        ffn = FfnTraits(
            shared=Shared.PLAIN,
            gating=Gating.SIGMOID_OF_CHOSEN,
            normalise=False,
            weighs_inputs=True,
        )
        has_norms = meta.int("expert_count", 0) != WITHOUT_NORMS
        turned = BlockTraits(
            build_rope(weights, h.key_dim, RopePairs.NEIGHBOURS),
            AttentionTraits(
                plain_norms=has_norms, norms_turned=has_norms, window=chunk, chunked=True
            ),
            ffn,
        )
        still = BlockTraits(None, AttentionTraits(growth=growth), ffn)
        return lambda block: still if (block + 1) % PERIOD == 0 else turned
