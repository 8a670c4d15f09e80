"""The second half of a block: a gated feed-forward layer, or a mixture of experts.

Which one a block has is decided by the tensors it has: keys such as leading_dense_block_count are
wrong in files that were saved again by other tools.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from ..backend.layers import (
    LAST_IN_FILES,
    SILU_GATE,
    Gate,
    Gating,
    Moe,
    PlainActivation,
    SharedExpert,
)
from ..errors import ModelError

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows
    from ..gguf.reader import GgufFile
    from .hparams import Hparams
    from .model_weights import Weights

MAX_EXPERTS = 1 << 14


class Shared(Enum):
    """The expert that every row goes through."""

    NONE = "none"
    PLAIN = "plain"
    OPTIONAL = "optional"  # plain, in blocks that have it
    GATED = "gated"  # scaled by the sigmoid of a projection of the row


class FfnTraits(Struct, frozen=True):
    """What families do differently."""

    gate: Gate = SILU_GATE  # of experts
    dense_gate: Gate = SILU_GATE  # of dense layers and shared experts
    shared: Shared = Shared.NONE
    gating: Gating | None = None  # where the file does not say; None: by the router's bias
    normalise: bool = True  # the weights of chosen experts, where the file does not say
    scales_experts: bool = False  # the output of each expert, by ffn_down_exps.scale
    needs_bias: bool = False  # router and experts
    weighs_inputs: bool = False  # see `Moe`
    activation: PlainActivation | None = None  # of experts without gates


PLAIN_FFN = FfnTraits()


class DenseFfn:
    def __init__(
        self, hparams: Hparams, weights: Weights, block: int, gate: Gate = SILU_GATE
    ) -> None:
        # The key may be missing or wrong for single layers; the down projection cannot be.
        width = inner_width(weights, "ffn_down", hparams.n_ff[block])
        parts = {"ffn_gate": width, "ffn_up": width}
        if _has_fused_gate(weights, width):
            parts = {"ffn_up": 2 * width}
        self.ffn_gate_up = weights.matrix(hparams.n_embd, parts)
        self.ffn_down = weights.matrix(width, {"ffn_down": hparams.n_embd})
        self.gate = gate

    def __call__(self, ops: Ops, a: Packed, x: Rows | None) -> Rows:
        """x, if any, plus the layer's output for the normed rows a."""
        inner = ops.gated_ffn(a, self.ffn_gate_up, self.gate)
        return ops.matmul(inner, self.ffn_down, add_to=x)


class MoeFfn:
    def __init__(
        self, hparams: Hparams, weights: Weights, traits: FfnTraits = PLAIN_FFN, n_in: int = 0
    ) -> None:
        """`n_in`: width of the rows that experts read; 0: that of the model."""
        self.ffn_exps = _mixture(hparams.n_embd, n_in or hparams.n_embd, weights, traits)

    def __call__(
        self, ops: Ops, a: Packed, x: Rows | None, routed_by: Packed | None = None
    ) -> Rows:
        return ops.moe(a, self.ffn_exps, x, routed_by)


def build_ffn(
    hparams: Hparams, weights: Weights, block: int, traits: FfnTraits = PLAIN_FFN
) -> DenseFfn | MoeFfn:
    if weights.has("ffn_gate_inp") or weights.has("ffn_down_exps"):
        return MoeFfn(hparams, weights, traits)
    return DenseFfn(hparams, weights, block, traits.dense_gate)


def _mixture(n_embd: int, n_in: int, weights: Weights, traits: FfnTraits) -> Moe:
    meta = weights.file.metadata
    n_expert = meta.int("expert_count", low=1, high=MAX_EXPERTS)
    width = inner_width(weights, "ffn_down_exps", meta.int("expert_feed_forward_length", 0))
    gate_up = {"ffn_gate_exps": width, "ffn_up_exps": width}
    if traits.activation is not None:
        gate_up = {"ffn_up_exps": width}
    elif weights.has("ffn_gate_up_exps"):
        gate_up = {"ffn_gate_up_exps": 2 * width}
    has_bias = weights.has_tensor("exp_probs_b.bias")
    # Files saved again by transformers lose the key; only sigmoid routers have such a bias.
    default = traits.gating or (Gating.SIGMOID if has_bias else Gating.SOFTMAX)
    scale = None
    if traits.scales_experts:  # read before the experts, which take it for NVFP4's
        scale = weights.vector("ffn_down_exps.scale", n_expert)
    n_used = meta.int("expert_used_count", low=1, high=n_expert)
    n_groups, n_groups_used = _groups(weights.file, n_expert, n_used)
    biased = traits.needs_bias
    return Moe(
        gate_inp=weights.matrix(n_embd, {"ffn_gate_inp": n_expert}, needs_bias=biased),
        gate_up=weights.experts(n_expert, n_in, gate_up, needs_bias=biased),
        down=weights.experts(n_expert, width, {"ffn_down_exps": n_in}, needs_bias=biased),
        n_used=n_used,
        gating=Gating(
            meta.int("expert_gating_func", 0, low=0, high=LAST_IN_FILES.value) or default.value
        ),
        normalise=meta.bool("expert_weights_norm", traits.normalise),
        scale=meta.float("expert_weights_scale", 1.0) or 1.0,
        probs_bias=weights.vector("exp_probs_b.bias", n_expert) if has_bias else None,
        gate=traits.gate,
        shared=_shared_expert(n_embd, weights, traits),
        n_groups=n_groups,
        n_groups_used=n_groups_used,
        expert_scale=scale,
        weighs_inputs=traits.weighs_inputs,
        activation=traits.activation,
    )


def _groups(file: GgufFile, n_expert: int, n_used: int) -> tuple[int, int]:
    """How many there are, and of how many experts are chosen."""
    meta = file.metadata
    n = meta.int("expert_group_count", 1, low=0, high=n_expert) or 1
    used = meta.int("expert_group_used_count", n, low=0, high=n) or n
    if n_expert % n or used * (n_expert // n) < n_used:
        raise ModelError(
            f"{file.label}: {n_expert} experts in {n} groups (expert_group_count), of which {used} "
            f"are used (expert_group_used_count), cannot give {n_used} experts (expert_used_count)"
        )
    return n, used


def _shared_expert(n_embd: int, weights: Weights, traits: FfnTraits) -> SharedExpert | None:
    is_there = traits.shared is not Shared.OPTIONAL or weights.has("ffn_down_shexp")
    if traits.shared is Shared.NONE or not is_there:
        return None
    key = "expert_shared_feed_forward_length"
    width = inner_width(weights, "ffn_down_shexp", weights.file.metadata.int(key, 0))
    gate_inp = None
    if traits.shared is Shared.GATED:
        gate_inp = weights.matrix(n_embd, {"ffn_gate_inp_shexp": 1})
    return SharedExpert(
        gate_up=weights.matrix(n_embd, {"ffn_gate_shexp": width, "ffn_up_shexp": width}),
        down=weights.matrix(width, {"ffn_down_shexp": n_embd}),
        gate_inp=gate_inp,
        gate=traits.dense_gate,
    )


def _has_fused_gate(weights: Weights, width: int) -> bool:
    """ffn_up has the rows of the gate before its own."""
    up = weights.file.tensors.get(f"{weights.prefix}ffn_up.weight")
    return up is not None and not weights.has("ffn_gate") and up.shape[0] == 2 * width


def inner_width(weights: Weights, down: str, from_key: int) -> int:
    tensor = weights.file.tensors.get(f"{weights.prefix}{down}.weight")
    return from_key if tensor is None else tensor.shape[-1]
