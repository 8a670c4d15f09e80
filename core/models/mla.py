"""Multi-head latent attention of one block: its matrices and its description for the backend.

Files of old converters hold the two matrices of a head in one, `attn_kv_b`; it is split here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ..backend.layers import (
    KvShape,
    LatentAttention,
    Matrix,
    RopePairs,
    RotaryPositions,
    float_part,
)
from ..errors import ModelError
from .rope import build_rope, yarn_magnitude

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.step import Step
    from ..gguf.reader import GgufFile
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights

MAX_RANK = 1 << 16


class LatentSizes(Struct, frozen=True):
    latent: int
    plain_dim: int
    rope_dim: int
    value_dim: int

    @classmethod
    def from_keys(cls, file: GgufFile, hparams: Hparams) -> LatentSizes:
        """Old files give a head's own widths as key_length and value_length."""
        meta = file.metadata
        head = meta.int("attention.key_length_mla", 0, high=MAX_RANK) or hparams.key_dim
        value = meta.int("attention.value_length_mla", 0, high=MAX_RANK) or hparams.value_dim
        latent = meta.int("attention.kv_lora_rank", low=1, high=MAX_RANK)
        rope = meta.int("rope.dimension_count", low=2, high=MAX_RANK)
        if rope >= head:
            raise ModelError(
                f"{file.label}: {meta.full_key('rope.dimension_count')} is {rope}, expected less "
                f"than the width of a head, {head}"
            )
        return cls(latent, head - rope, rope, value)


def latent_rope(weights: Weights, sizes: LatentSizes) -> tuple[RotaryPositions, float]:
    """Rope, whose magnitude scales whole scores instead, and what scales them."""
    rope = build_rope(weights, sizes.rope_dim, RopePairs.NEIGHBOURS)
    magnitude = yarn_magnitude(weights.file.metadata)
    scale = magnitude**2 * (sizes.plain_dim + sizes.rope_dim) ** -0.5
    return replace(rope, magnitude=1.0), scale


class Mla:
    """attn_q (or attn_q_a, attn_q_b), attn_kv_a_mqa, attn_k_b, attn_v_b, attn_output."""

    def __init__(
        self,
        hparams: Hparams,
        weights: Weights,
        layout: Layout,
        rope: RotaryPositions,
        scale: float,
        *,
        n_in: int = 0,
        hides_first: bool = False,
        latent_eps: float = 0.0,
    ) -> None:
        """`n_in`: width of the rows that come in; 0: that of the model. `latent_eps`: of the norm
        of latents; 0: the model's."""
        n_in = n_in or hparams.n_embd
        h, n_heads = hparams, hparams.n_heads[layout.block]
        s = LatentSizes.from_keys(weights.file, h)
        self.has_low_rank_q = weights.has("attn_q_a")
        name, n_query = "attn_q", n_in
        if self.has_low_rank_q:
            rank = weights.file.tensors[f"{weights.prefix}attn_q_a.weight"].shape[0]
            self.attn_q_a = weights.matrix(n_in, {"attn_q_a": rank})
            self.attn_q_a_norm = weights.norm("attn_q_a_norm", rank, h.eps)
            name, n_query = "attn_q_b", rank
        self.attn_q = weights.matrix(n_query, {name: n_heads * (s.plain_dim + s.rope_dim)})
        self.attn_kv_a = weights.matrix(n_in, {"attn_kv_a_mqa": s.latent + s.rope_dim})
        k_b, v_b = _absorbed(weights, n_heads, s)
        self.attention = LatentAttention(
            layer=layout.add_kv(KvShape(1, s.latent + s.rope_dim, 0)),
            n_heads=n_heads,
            latent=s.latent,
            plain_dim=s.plain_dim,
            rope_dim=s.rope_dim,
            value_dim=s.value_dim,
            scale=scale,
            rope=rope,
            latent_norm=weights.norm("attn_kv_a_norm", s.latent, latent_eps or h.eps),
            k_b=k_b,
            v_b=v_b,
            hides_first=hides_first,
        )
        self.attn_output = weights.matrix(n_heads * s.value_dim, {"attn_output": h.n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        """x, if any, plus attention of the normed rows a."""
        cells = ops.matmul(a, self.attn_kv_a)
        if self.has_low_rank_q:
            a = ops.norm(ops.matmul(a, self.attn_q_a), self.attn_q_a_norm)
        heads = ops.attend_latent(ops.matmul(a, self.attn_q), cells, self.attention, state, step)
        return ops.matmul(heads, self.attn_output, add_to=x)


def _absorbed(weights: Weights, n_heads: int, s: LatentSizes) -> tuple[Matrix, Matrix]:
    """The stacks k_b (heads, latent, plain) and v_b (heads, value, latent)."""
    if weights.has("attn_k_b") or not weights.has("attn_kv_b"):
        return (
            weights.experts(n_heads, s.plain_dim, {"attn_k_b": s.latent}),
            weights.experts(n_heads, s.latent, {"attn_v_b": s.value_dim}),
        )
    height = s.plain_dim + s.value_dim
    both = weights.floats("attn_kv_b.weight", n_heads * height, s.latent)
    keys, values = np.split(both.reshape(n_heads, height, s.latent), [s.plain_dim], axis=1)
    return (
        weights.backend.matrix([float_part("attn_k_b.weight", keys.swapaxes(1, 2))]),
        weights.backend.matrix([float_part("attn_v_b.weight", values)]),
    )
