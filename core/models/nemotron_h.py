"""Nemotron-H, GGUF architectures `nemotron_h` and `nemotron_h_moe`: each block is Mamba-2,
attention, a feed-forward layer or a mixture, by its tensors; an MTP block attention and a mixture.

Attention has no positions; feed-forward layers and experts have no gates, they square what relu
leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend.layers import Gating, PlainActivation
from .block import Block, BlockBuilder, Ffn
from .dense import PreNormBlock
from .ffn import FfnTraits, MoeFfn, inner_width
from .hparams import MAX_WIDTH
from .mamba2 import OneLayerBlock
from .model import Model
from .self_attention import SelfAttention
from .state_space_mixer import StateSpaceMixer

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.step import Step
    from .dense import Mixer
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


_EXPERTS = FfnTraits(gating=Gating.SIGMOID, activation=PlainActivation.RELU_SQUARED)


class NemotronH(Model):
    head_norm_centred = True

    def block_builder(self, weights: Weights) -> BlockBuilder:
        h = self.hparams

        def build(scope: Weights, layout: Layout) -> Block:
            if layout.block >= h.n_layers:
                attention = SelfAttention(h, scope, layout, None)
                return PreNormBlock(h, scope, attention, _ffn(h, scope), "post_attention_norm")
            return OneLayerBlock(h, scope, self._mixer(scope, layout))

        return build

    def _mixer(self, weights: Weights, layout: Layout) -> Mixer:
        h = self.hparams
        if weights.has("ssm_in"):
            return StateSpaceMixer(h.n_embd, weights, layout)
        if weights.has("attn_q") or weights.has("attn_qkv"):
            return SelfAttention(h, weights, layout, None)
        return FfnAsMixer(_ffn(h, weights))


def _ffn(hparams: Hparams, weights: Weights) -> Ffn:
    if weights.has("ffn_gate_inp"):
        return SquaredMixture(hparams, weights)
    return SquaredFfn(hparams, weights)


class FfnAsMixer:
    def __init__(self, ffn: Ffn) -> None:
        self.ffn = ffn

    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        return self.ffn(ops, a, x)


class SquaredFfn:
    """down(relu(up(x))^2)."""

    def __init__(self, hparams: Hparams, weights: Weights, ending: str = "") -> None:
        up, down, n_embd = f"ffn_up{ending}", f"ffn_down{ending}", hparams.n_embd
        width = inner_width(weights, down, max(hparams.n_ff))
        self.ffn_up = weights.matrix(n_embd, {up: width})
        self.ffn_down = weights.matrix(width, {down: n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows | None) -> Rows:
        inner = ops.activate(ops.matmul(a, self.ffn_up), PlainActivation.RELU_SQUARED)
        return ops.matmul(ops.pack(inner), self.ffn_down, add_to=x)


class SquaredMixture:
    """Experts that read the rows, or short latents of them, and one that reads all rows."""

    def __init__(self, hparams: Hparams, weights: Weights) -> None:
        n_embd = hparams.n_embd
        n_latent = weights.file.metadata.int("moe_latent_size", 0, high=MAX_WIDTH)
        if weights.has("ffn_latent_up"):
            n_latent = inner_width(weights, "ffn_latent_up", n_latent)
        self.experts = MoeFfn(hparams, weights, _EXPERTS, n_latent)
        self.shared = None
        if weights.has("ffn_down_shexp"):
            self.shared = SquaredFfn(hparams, weights, "_shexp")
        self.has_latents = n_latent > 0
        if self.has_latents:
            self.latent_down = weights.matrix(n_embd, {"ffn_latent_down": n_latent})
            self.latent_up = weights.matrix(n_latent, {"ffn_latent_up": n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows | None) -> Rows:
        if self.has_latents:
            latents = ops.pack(ops.matmul(a, self.latent_down))
            routed = ops.pack(self.experts(ops, latents, None, a))
            x = ops.matmul(routed, self.latent_up, add_to=x)
        else:
            x = self.experts(ops, a, x)
        return x if self.shared is None else self.shared(ops, a, x)
