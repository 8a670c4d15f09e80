"""Gemma 4, GGUF architecture `gemma4`: two widths of heads, shared keys and values, inputs for
each layer, and a mixture of experts beside the dense layer.

Layers with a window have narrower heads. The last `attention.shared_kv_layers` read the keys and
values of the last layer of their kind before them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..backend.interface import Output, Taps
from ..backend.layers import GELU_GATE, Norm, RopePairs
from ..errors import ModelError
from .block import BlockBuilder
from .dense import Mixer, SandwichBlock
from .ffn import DenseFfn, FfnTraits, MoeFfn
from .layer_inputs import MAX_WIDTH, LayerInput, LayerInputs, input_width
from .model import Model
from .rope import WINDOWED_ROPE, build_rope
from .self_attention import AttentionTraits, SelfAttention
from .window_keys import read_windows

if TYPE_CHECKING:
    from ..backend.interface import Ops, Rows, State
    from ..backend.layers import Attention
    from ..backend.step import Step
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


class Gemma4(Model):
    # The last layer with a window and the last one without, which say whose cells are read by those
    # that keep none.
    newest: dict[bool, Attention]

    def __init__(self, hparams: Hparams, weights: Weights, **how: Any) -> None:
        super().__init__(hparams, weights, **how)
        if len(self.share.blocks) < hparams.n_layers:
            raise ModelError(
                f"{weights.file.label}: layers of gemma4 read what other layers left, and cannot "
                "be split across devices; choose one device"
            )
        width = input_width(weights)
        self.layer_inputs = LayerInputs(hparams, weights, width) if width else None

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.hparams.n_embd)

    def block_builder(self, weights: Weights) -> BlockBuilder:
        h, meta = self.hparams, weights.file.metadata
        windows, width = read_windows(meta, h), input_width(weights)
        # Rows of an image see each other in layers with a window, but for E2B and E4B.
        self.is_bidirectional = not width
        n_shared = meta.int("attention.shared_kv_layers", 0, high=h.n_layers)
        narrow = meta.int("attention.key_length_swa", h.key_dim, low=1, high=MAX_WIDTH)
        wide_rope = build_rope(weights, h.key_dim, RopePairs.HALVES)
        narrow_rope = build_rope(weights, narrow, RopePairs.HALVES, WINDOWED_ROPE)
        newest: dict[bool, Attention] = {}
        self.newest = newest

        def build(scope: Weights, layout: Layout) -> Gemma4Block:
            window = windows[layout.block]
            is_windowed, shared = bool(window), None
            if layout.block >= h.n_layers - n_shared:
                shared = _shared_layer(weights, layout.block, newest.get(is_windowed))
            traits = AttentionTraits(
                head_norms=True,
                window=window,
                bidirectional=is_windowed and self.is_bidirectional and layout.block < h.n_layers,
                head_dim=narrow if is_windowed else h.key_dim,
                scale=1.0,
                norms_values=True,
                shared_layer=shared,
            )
            rope = narrow_rope if is_windowed else wide_rope
            mixer = SelfAttention(h, scope, layout, rope, traits)
            newest[is_windowed] = mixer.attention
            layer_input = LayerInput(h, scope, layout.block, width) if width else None
            return Gemma4Block(h, scope, mixer, layout.block, layer_input)

        return build

    def _before(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        x = ops.embed(self.token_embd, step, self.embedding_scale)
        inputs = self.layer_inputs(ops, x, step) if self.layer_inputs is not None else None
        return self._through(ops, x, step, state, wanted, inputs)


def _shared_layer(weights: Weights, block: int, newest: Attention | None) -> int:
    if newest is None:
        raise ModelError(
            f"{weights.file.label}: block {block} is to share keys and values, but no layer of its "
            "kind comes before it"
        )
    for name in ("attn_k", "attn_v", "attn_k_norm"):  # some converters write them
        weights.leave_out(f"blk.{block}.{name}.")
    return newest.layer


class Gemma4Block(SandwichBlock):
    def __init__(
        self,
        hparams: Hparams,
        weights: Weights,
        mixer: Mixer,
        block: int,
        layer_input: LayerInput | None,
    ) -> None:
        super().__init__(hparams, weights, mixer, DenseFfn(hparams, weights, block, GELU_GATE))
        self.experts = Gemma4Experts(hparams, weights) if weights.has("ffn_gate_inp") else None
        self.layer_input, self.output_scale = layer_input, 1.0
        if weights.has("layer_output_scale"):
            self.output_scale = float(weights.floats("layer_output_scale.weight", 1)[0])

    def __call__(
        self, ops: Ops, x: Rows, step: Step, state: State, inputs: Rows | None = None
    ) -> Rows:
        y = self.mixer(ops, ops.norm(x, self.attn_norm), None, step, state)
        x = ops.add_norm(x, y, self.post_attention_norm)
        y = self.ffn(ops, ops.norm(x, self.ffn_norm), None)
        if self.experts is not None:
            y = self.experts(ops, x, y)
        if self.layer_input is None:
            return ops.add_norm(x, y, self.post_ffw_norm, self.output_scale)
        x = ops.add_norm(x, y, self.post_ffw_norm)
        return self.layer_input(ops, x, inputs, self.output_scale)


class Gemma4Experts:
    """A mixture beside the dense layer; its router has a norm of its own."""

    def __init__(self, hparams: Hparams, weights: Weights) -> None:
        h = hparams
        scale = weights.floats("ffn_gate_inp.scale", h.n_embd) * h.n_embd**-0.5
        self.router_norm = Norm(weights.backend.vector(scale), h.eps)
        self.post_ffw_norm_1, self.pre_ffw_norm_2, self.post_ffw_norm_2 = (
            weights.norm(name, h.n_embd, h.eps)
            for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
        )
        self.ffn_exps = MoeFfn(h, weights, FfnTraits(GELU_GATE, scales_experts=True))

    def __call__(self, ops: Ops, x: Rows, dense: Rows) -> Rows:
        routed_by = ops.norm(x, self.router_norm)
        mixed = self.ffn_exps(ops, ops.norm(x, self.pre_ffw_norm_2), None, routed_by)
        return ops.add_norm(
            ops.norm_slices(dense, self.post_ffw_norm_1), mixed, self.post_ffw_norm_2
        )
