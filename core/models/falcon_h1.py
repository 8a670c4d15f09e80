"""Falcon-H1, GGUF architecture `falcon-h1`: attention and Mamba-2 side by side in each block.

The multipliers of its checkpoints are in the weights. llama.cpp's converter leaves `.weight` off
the name of `ffn_norm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel, Mixer
from .rope import build_rope
from .state_space_mixer import StateSpaceMixer

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.step import Step
    from .layout import Layout
    from .model_weights import Weights


class FalconH1(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        every = BlockTraits(build_rope(weights, self.hparams.key_dim, RopePairs.HALVES))
        return lambda _block: every

    def mixer(self, weights: Weights, layout: Layout, traits: BlockTraits) -> Mixer:
        attention = super().mixer(weights, layout, traits)
        return SideBySide(attention, StateSpaceMixer(self.hparams.n_embd, weights, layout))


class SideBySide:
    """Two mixers that read the same rows."""

    def __init__(self, first: Mixer, second: Mixer) -> None:
        self.first, self.second = first, second

    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        return self.second(ops, a, self.first(ops, a, x, step, state), step, state)
