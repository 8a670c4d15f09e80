"""Gemma 2, GGUF architecture `gemma2`: Gemma 3 without norms of heads, and with capped scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import GELU_GATE, RopePairs
from .dense import BlockTraits
from .ffn import FfnTraits
from .gemma3 import Gemma3, score_scale
from .rope import build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from .model_weights import Weights

PERIOD = 2  # the last of two layers sees all cells
LAYERS_OF_27B = 46
CAP = 50.0  # of scores, where the file does not say


class Gemma2(Gemma3):
    is_bidirectional = False

    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        windows = read_windows(meta, h, PERIOD, may_lack=True)
        scale = score_scale(h, meta, LAYERS_OF_27B)
        cap = meta.float("attn_logit_softcapping", CAP, low=0.0)
        rope = build_rope(weights, h.key_dim, RopePairs.HALVES)
        ffn = FfnTraits(dense_gate=GELU_GATE)

        def of_block(block: int) -> BlockTraits:
            attention = AttentionTraits(window=windows[block], scale=scale, cap=cap)
            return BlockTraits(rope, attention, ffn)

        return of_block
