"""gpt-oss, GGUF architecture `gpt-oss`: windows with sinks, experts with biases.

The hub's checkpoints start and end YaRN's ramp between two pairs. llama.cpp rounds to whole ones,
and no key of its files says so: `rope.scaling.yarn_truncate`, if true, follows llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import Gate, GateActivation, Gating, RopePairs
from .dense import BlockTraits, DenseModel
from .ffn import FfnTraits
from .rope import RopeSpec, build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from .model_weights import Weights

PERIOD = 2  # the last of two layers sees all cells
LIMIT = 7.0  # of gates and ups, as in llama.cpp; no key says it


class GptOss(DenseModel):
    ffn_norm = "post_attention_norm"

    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        windows = read_windows(meta, h, PERIOD)
        rope = build_rope(weights, h.key_dim, RopePairs.HALVES, RopeSpec(whole_pairs=False))
        ffn = FfnTraits(
            gate=Gate(GateActivation.OAI, LIMIT),
            normalise=False,
            needs_bias=True,
            gating=Gating.SOFTMAX_OF_CHOSEN,
        )

        def of_block(block: int) -> BlockTraits:
            attention = AttentionTraits(
                needs_bias=True, needs_output_bias=True, sinks=True, window=windows[block]
            )
            return BlockTraits(rope, attention, ffn)

        return of_block
