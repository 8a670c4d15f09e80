"""SmolLM3, GGUF architecture `smollm3`: Llama without rope in every fourth layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import RopePairs
from .dense import BlockTraits, DenseModel
from .rope import build_rope

if TYPE_CHECKING:
    from .model_weights import Weights

PERIOD = 4  # the last of four layers has no rope; no key says so


class SmolLm3(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        turned = BlockTraits(build_rope(weights, self.hparams.key_dim, RopePairs.NEIGHBOURS))
        plain = BlockTraits(None)
        return lambda block: plain if (block + 1) % PERIOD == 0 else turned
