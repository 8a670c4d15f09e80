"""Mamba-2, GGUF architecture `mamba2`; and blocks that are one layer, of `nemotron_h` as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .block import BlockBuilder
from .model import Model
from .state_space_mixer import StateSpaceMixer

if TYPE_CHECKING:
    from ..backend.interface import Ops, Rows, State
    from ..backend.step import Step
    from .dense import Mixer
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


class OneLayerBlock:
    """x += mixer(norm(x))."""

    def __init__(self, hparams: Hparams, weights: Weights, mixer: Mixer) -> None:
        self.attn_norm = weights.norm("attn_norm", hparams.n_embd, hparams.eps)
        self.mixer = mixer

    def __call__(self, ops: Ops, x: Rows, step: Step, state: State) -> Rows:
        return self.mixer(ops, ops.norm(x, self.attn_norm), x, step, state)


class Mamba2(Model):
    def block_builder(self, weights: Weights) -> BlockBuilder:
        def build(scope: Weights, layout: Layout) -> OneLayerBlock:
            mixer = StateSpaceMixer(self.hparams.n_embd, scope, layout)
            return OneLayerBlock(self.hparams, scope, mixer)

        return build
