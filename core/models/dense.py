"""Decoders whose blocks are attention and a feed-forward layer; families differ in traits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct

from .block import Block, BlockBuilder, Ffn
from .ffn import PLAIN_FFN, FfnTraits, build_ffn
from .model import Model
from .self_attention import PLAIN_ATTENTION, AttentionTraits, SelfAttention

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.layers import RotaryPositions
    from ..backend.step import Step
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


class Mixer(Protocol):
    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        """x, if any, plus what the layer makes of the normed rows a."""


class PreNormBlock:
    """x += mixer(norm(x)); x += ffn(norm(x))."""

    def __init__(
        self, hparams: Hparams, weights: Weights, mixer: Mixer, ffn: Ffn, ffn_norm: str = "ffn_norm"
    ) -> None:
        """`ffn_norm`: some families call the norm before the feed-forward layer
        `post_attention_norm`."""
        self.attn_norm = weights.norm("attn_norm", hparams.n_embd, hparams.eps)
        self.mixer = mixer
        self.ffn_norm = weights.norm(ffn_norm, hparams.n_embd, hparams.eps)
        self.ffn = ffn

    def __call__(self, ops: Ops, x: Rows, step: Step, state: State) -> Rows:
        x = self.mixer(ops, ops.norm(x, self.attn_norm), x, step, state)
        return self.ffn(ops, ops.norm(x, self.ffn_norm), x)


class SandwichBlock:
    """x += norm(mixer(norm(x))); x += norm(ffn(norm(x)))."""

    def __init__(self, hparams: Hparams, weights: Weights, mixer: Mixer, ffn: Ffn) -> None:
        self.attn_norm, self.post_attention_norm, self.ffn_norm, self.post_ffw_norm = (
            weights.norm(name, hparams.n_embd, hparams.eps)
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        )
        self.mixer, self.ffn = mixer, ffn

    def __call__(self, ops: Ops, x: Rows, step: Step, state: State) -> Rows:
        y = self.mixer(ops, ops.norm(x, self.attn_norm), None, step, state)
        x = ops.add_norm(x, y, self.post_attention_norm)
        y = self.ffn(ops, ops.norm(x, self.ffn_norm), None)
        return ops.add_norm(x, y, self.post_ffw_norm)


class ParallelBlock:
    """x += mixer(norm(x)) + ffn(norm(x)), of one norm that subtracts the mean."""

    def __init__(self, hparams: Hparams, weights: Weights, mixer: Mixer, ffn: Ffn) -> None:
        self.attn_norm = weights.norm("attn_norm", hparams.n_embd, hparams.eps, centred=True)
        self.mixer, self.ffn = mixer, ffn

    def __call__(self, ops: Ops, x: Rows, step: Step, state: State) -> Rows:
        a = ops.norm(x, self.attn_norm)
        y = self.mixer(ops, a, None, step, state)
        return ops.add(self.ffn(ops, a, x), y)


class PostNormBlock:
    """x += norm(mixer(x)); x += norm(ffn(x))."""

    def __init__(self, hparams: Hparams, weights: Weights, mixer: Mixer, ffn: Ffn) -> None:
        self.post_attention_norm, self.post_ffw_norm = (
            weights.norm(name, hparams.n_embd, hparams.eps)
            for name in ("post_attention_norm", "post_ffw_norm")
        )
        self.mixer, self.ffn = mixer, ffn

    def __call__(self, ops: Ops, x: Rows, step: Step, state: State) -> Rows:
        y = self.mixer(ops, ops.pack(x), None, step, state)
        x = ops.add_norm(x, y, self.post_attention_norm)
        y = self.ffn(ops, ops.pack(x), None)
        return ops.add_norm(x, y, self.post_ffw_norm)


class BlockTraits(Struct, frozen=True):
    rope: RotaryPositions | None
    attention: AttentionTraits = PLAIN_ATTENTION
    ffn: FfnTraits = PLAIN_FFN


class DenseModel(Model):
    """Norm, attention, norm, feed-forward layer or mixture."""

    ffn_norm: ClassVar[str] = "ffn_norm"

    @abstractmethod
    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        """Of each block, MTP blocks included."""

    def block_builder(self, weights: Weights) -> BlockBuilder:
        h, traits_of = self.hparams, self.traits(weights)

        def build(scope: Weights, layout: Layout) -> Block:
            traits = traits_of(layout.block)
            mixer = self.mixer(scope, layout, traits)
            return self.block(scope, mixer, build_ffn(h, scope, layout.block, traits.ffn))

        return build

    def mixer(self, weights: Weights, layout: Layout, traits: BlockTraits) -> Mixer:
        return SelfAttention(self.hparams, weights, layout, traits.rope, traits.attention)

    def block(self, weights: Weights, mixer: Mixer, ffn: Ffn) -> Block:
        return PreNormBlock(self.hparams, weights, mixer, ffn, self.ffn_norm)
