"""LFM2, GGUF architectures `lfm2` and `lfm2moe`: short convolutions, and attention in some blocks.

`token_embd_norm` is the norm before the head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import Gating, Norm, RecurrentShape, RopePairs, ShortConvolution
from .dense import BlockTraits, DenseModel, Mixer
from .ffn import FfnTraits
from .rope import build_rope
from .self_attention import AttentionTraits

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.step import Step
    from .layout import Layout
    from .model_weights import Weights


class Lfm2(DenseModel):
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        every = BlockTraits(
            build_rope(weights, self.hparams.key_dim, RopePairs.HALVES),
            AttentionTraits(
                head_norms=True, window=weights.file.metadata.int("attention.sliding_window", 0)
            ),
            FfnTraits(gating=Gating.SIGMOID),
        )
        return lambda _block: every

    def mixer(self, weights: Weights, layout: Layout, traits: BlockTraits) -> Mixer:
        if weights.has("shortconv.conv"):
            return ShortConvMixer(self.hparams.n_embd, weights, layout)
        return super().mixer(weights, layout, traits)

    def end_norm(self, weights: Weights) -> Norm:
        return weights.norm("token_embd_norm", self.hparams.n_embd, self.hparams.eps)


class ShortConvMixer:
    def __init__(self, n_embd: int, weights: Weights, layout: Layout) -> None:
        kernel = weights.file.metadata.int("shortconv.l_cache", low=2, high=64)
        shape = RecurrentShape.of_convolution(n_embd, kernel)
        weight = weights.vector("shortconv.conv.weight", n_embd, kernel)
        self.convolution = ShortConvolution(layout.add_recurrent(shape), shape, weight)
        self.in_proj = weights.matrix(n_embd, {"shortconv.in_proj": 3 * n_embd})
        self.out_proj = weights.matrix(n_embd, {"shortconv.out_proj": n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        """x, if any, plus the mixer's output for the normed rows a."""
        rows = ops.matmul(a, self.in_proj)
        mixed = ops.short_convolution(rows, self.convolution, state, step)
        return ops.matmul(mixed, self.out_proj, add_to=x)
