"""Gemma 3, GGUF architecture `gemma3`: norms before and behind each layer, windows, GELU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import GELU_GATE, RopePairs
from .dense import BlockTraits, DenseModel, Mixer, SandwichBlock
from .ffn import FfnTraits
from .rope import RopeSpec, build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from ..gguf.metadata import Metadata
    from .block import Ffn
    from .hparams import Hparams
    from .model_weights import Weights

PERIOD = 6  # the last of six layers sees all cells
LAYERS_OF_27B = 62  # whose scores are scaled by the width of the model, as in llama.cpp


class Gemma3(DenseModel):
    is_bidirectional = True

    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        windows = read_windows(meta, h, PERIOD, may_lack=True)
        scale = score_scale(h, meta, LAYERS_OF_27B)
        everywhere = build_rope(weights, h.key_dim, RopePairs.HALVES)
        spec = RopeSpec("_swa", 10000.0, is_scaled=False, has_factors=False)
        nearby = build_rope(weights, h.key_dim, RopePairs.HALVES, spec)
        ffn = FfnTraits(dense_gate=GELU_GATE)

        def of_block(block: int) -> BlockTraits:
            window = windows[block]
            attention = AttentionTraits(
                head_norms=True,
                window=window,
                scale=scale,
                bidirectional=block < h.n_layers,
            )
            return BlockTraits(nearby if window else everywhere, attention, ffn)

        return of_block

    def block(self, weights: Weights, mixer: Mixer, ffn: Ffn) -> SandwichBlock:
        return SandwichBlock(self.hparams, weights, mixer, ffn)

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.hparams.n_embd)


def score_scale(h: Hparams, meta: Metadata, layers_of_27b: int) -> float:
    if h.n_layers == layers_of_27b and not meta.has("attention.scale"):
        return float((h.n_embd / h.n_heads[0]) ** -0.5)
    return h.attention_scale
