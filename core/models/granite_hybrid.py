"""Granite 4 H and Bamba, GGUF architecture `granitehybrid`: Granite with Mamba-2 in most blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .granite import Granite
from .state_space_mixer import StateSpaceMixer

if TYPE_CHECKING:
    from .dense import BlockTraits, Mixer
    from .layout import Layout
    from .model_weights import Weights


class GraniteHybrid(Granite):
    def mixer(self, weights: Weights, layout: Layout, traits: BlockTraits) -> Mixer:
        if weights.has("ssm_in"):
            return StateSpaceMixer(self.hparams.n_embd, weights, layout)
        return super().mixer(weights, layout, traits)
