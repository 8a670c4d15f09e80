"""Kimi-Linear, GGUF architecture `kimi-linear`: Kimi's delta attention, and latent attention in
every fourth block, which knows no positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..backend.layers import ChannelDelta, Gating, RecurrentShape, RopePairs, RotaryPositions
from .block import BlockBuilder
from .dense import PreNormBlock
from .ffn import FfnTraits, Shared, build_ffn
from .mla import LatentSizes, Mla
from .model import Model

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.layers import Vector
    from ..backend.step import Step
    from .dense import Mixer
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights

# Of the checkpoint's own class, whatever the epsilon of the other norms.
_UNIT_EPS = _LATENT_EPS = 1e-6
_CONVOLUTIONS = ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v")


class KimiLinear(Model):
    def block_builder(self, weights: Weights) -> BlockBuilder:
        h = self.hparams
        sizes = LatentSizes.from_keys(weights.file, h)
        no_turn = RotaryPositions(RopePairs.NEIGHBOURS, np.zeros(sizes.rope_dim // 2))
        scale = (sizes.plain_dim + sizes.rope_dim) ** -0.5
        ffn = FfnTraits(gating=Gating.SIGMOID, shared=Shared.PLAIN)

        def build(scope: Weights, layout: Layout) -> PreNormBlock:
            mixer: Mixer
            if scope.has("attn_kv_a_mqa"):
                mixer = Mla(h, scope, layout, no_turn, scale, latent_eps=_LATENT_EPS)
            else:
                mixer = KimiDelta(h, scope, layout)
            return PreNormBlock(h, scope, mixer, build_ffn(h, scope, layout.block, ffn))

        return build


class KimiDelta:
    def __init__(self, hparams: Hparams, weights: Weights, layout: Layout) -> None:
        meta, n_embd = weights.file.metadata, hparams.n_embd
        n, d = hparams.n_heads[layout.block], meta.int("kda.head_dim", low=1, high=4096)
        kernel, width = meta.int("ssm.conv_kernel", low=2, high=64), n * d
        shape = RecurrentShape.of_heads(n, n, d, d, kernel, decay_dim=d)
        self.delta = ChannelDelta(
            layer=layout.add_recurrent(shape),
            shape=shape,
            conv1d=_convolutions(weights, width, kernel),
            dt_bias=weights.vector("ssm_dt.bias", width),
            a=weights.vector("ssm_a", n),
            norm=weights.norm("ssm_norm", d, hparams.eps),
            unit_eps=_UNIT_EPS,
        )
        heights = {"attn_q": width, "attn_k": width, "attn_v": width, "ssm_beta": n}
        self.qkv_beta = weights.matrix(n_embd, heights)
        self.f_a, self.g_a = (weights.matrix(n_embd, {f"ssm_{x}_a": d}) for x in "fg")
        self.f_b, self.g_b = (weights.matrix(d, {f"ssm_{x}_b": width}) for x in "fg")
        self.attn_output = weights.matrix(width, {"attn_output": n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        """x, if any, plus the mixer's output for the normed rows a."""
        decays = ops.matmul(ops.pack(ops.matmul(a, self.f_a)), self.f_b)
        gates = ops.matmul(ops.pack(ops.matmul(a, self.g_a)), self.g_b)
        rows = ops.matmul(a, self.qkv_beta)
        heads = ops.channel_delta(rows, decays, gates, self.delta, state, step)
        return ops.matmul(heads, self.attn_output, add_to=x)


def _convolutions(weights: Weights, width: int, kernel: int) -> Vector:
    """Those of queries, keys and values, as one."""
    parts = [weights.floats(f"{name}.weight", width, kernel) for name in _CONVOLUTIONS]
    return weights.backend.vector(np.concatenate(parts))
