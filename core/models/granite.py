"""Granite, GGUF architectures `granite` and `granitemoe`: Llama whose rows, layers, scores and
logits are scaled.

x + r * layer(norm(x)) is r * (y + layer(norm(r * y))) for x = r * y, and the norm of r * y is that
of y with another epsilon: rows are kept as y, and no layer has to scale what it adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..backend.layers import Norm, RopePairs
from .dense import BlockTraits, DenseModel
from .ffn import FfnTraits, Shared
from .rope import build_rope

if TYPE_CHECKING:
    from ..backend.interface import Ops, Rows
    from .hparams import Hparams
    from .model_weights import Weights


class Granite(DenseModel):
    def __init__(self, hparams: Hparams, weights: Weights, **how: Any) -> None:
        meta = weights.file.metadata
        self.row_scale = meta.float("residual_scale", 0.0, low=0.0) or 1.0
        self.table_scale = meta.float("embedding_scale", 0.0, low=0.0) or 1.0
        super().__init__(replace(hparams, eps=hparams.eps / self.row_scale**2), weights, **how)

    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        rope = None
        if weights.file.metadata.bool("rope.scaling.finetuned", True):  # the switch of rope here
            rope = build_rope(weights, self.hparams.key_dim, RopePairs.NEIGHBOURS)
        every = BlockTraits(rope, ffn=FfnTraits(shared=Shared.OPTIONAL))
        return lambda _block: every

    def end_norm(self, weights: Weights) -> Norm:
        h = self.hparams
        scale = weights.file.metadata.float("logit_scale", 1.0, low=1e-6)
        return weights.norm("output_norm", h.n_embd, h.eps, scale=1 / scale)

    @property
    def embedding_scale(self) -> float:
        return self.table_scale / self.row_scale

    def tap(self, ops: Ops, x: Rows) -> Rows:
        # r * y: as (y + y) * (r / 2), because there is no operation that scales alone.
        return ops.add(ops.keep(x), x, self.row_scale / 2)
