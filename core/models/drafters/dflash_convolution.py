"""DFlash2's convolutions around a layer: over the rows of a block, by weights that rows bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...backend.layers import DynamicConvolution
from ...errors import ModelError

if TYPE_CHECKING:
    from ...backend.interface import Ops, Rows
    from ...backend.step import Step
    from ..hparams import Hparams
    from ..model_weights import Weights

MAX_TAPS = 64


class BlockConvolution:
    """Of what enters a layer, and of what leaves it; both by factors of what enters."""

    def __init__(self, h: Hparams, weights: Weights, layer: str) -> None:
        """`layer`: attn or ffn."""
        meta = weights.file.metadata
        kernel = meta.int("conv_kernel_size", low=1, high=MAX_TAPS)
        group = meta.int("conv_group_size", low=1, high=h.n_embd)
        if h.n_embd % group:
            raise ModelError(
                f"{weights.file.label}: {meta.full_key('conv_group_size')} is {group}, which does "
                f"not divide the width of {h.n_embd}"
            )
        n_factors = kernel * (h.n_embd // group)
        base = weights.floats(f"{layer}_conv_base", 2, kernel, h.n_embd)
        self.entering, self.leaving = (
            DynamicConvolution(kernel, group, weights.backend.vector(base[side]), side * n_factors)
            for side in (0, 1)
        )
        self.conv_proj = weights.matrix(h.n_embd, {f"{layer}_conv_proj": 2 * n_factors})

    def factors(self, ops: Ops, entering: Rows) -> Rows:
        return ops.matmul(ops.pack(entering), self.conv_proj)

    def enter(self, ops: Ops, x: Rows, factors: Rows, step: Step) -> Rows:
        return ops.convolve(x, factors, self.entering, step)

    def leave(self, ops: Ops, y: Rows, factors: Rows, step: Step) -> Rows:
        return ops.convolve(y, factors, self.leaving, step)
