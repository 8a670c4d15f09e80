"""The second half of a block: a gated feed-forward layer, or a mixture of experts.

Which one a block has is decided by the tensors it has: keys such as leading_dense_block_count are
wrong in files that were saved again by other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend.layers import GateActivation, Gating, Moe, SharedExpert

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows
    from .hparams import Hparams
    from .model_weights import Weights

MAX_EXPERTS = 1 << 14


class DenseFfn:
    def __init__(self, hparams: Hparams, weights: Weights, block: int) -> None:
        # The key may be missing or wrong for single layers; the down projection cannot be.
        width = _inner_width(weights, "ffn_down", hparams.n_ff[block])
        self.ffn_gate_up = weights.matrix(hparams.n_embd, {"ffn_gate": width, "ffn_up": width})
        self.ffn_down = weights.matrix(width, {"ffn_down": hparams.n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows) -> Rows:
        inner = ops.gated_ffn(a, self.ffn_gate_up, GateActivation.SILU)
        return ops.matmul(inner, self.ffn_down, add_to=x)


class MoeFfn:
    def __init__(self, hparams: Hparams, weights: Weights, *, shared: bool = False) -> None:
        meta, n_embd = weights.file.metadata, hparams.n_embd
        n_expert = meta.int("expert_count", low=1, high=MAX_EXPERTS)
        width = _inner_width(weights, "ffn_down_exps", meta.int("expert_feed_forward_length", 0))
        gate_up = {"ffn_gate_exps": width, "ffn_up_exps": width}
        if weights.has("ffn_gate_up_exps"):
            gate_up = {"ffn_gate_up_exps": 2 * width}
        self.ffn_exps = Moe(
            gate_inp=weights.matrix(n_embd, {"ffn_gate_inp": n_expert}),
            gate_up=weights.experts(n_expert, n_embd, gate_up),
            down=weights.experts(n_expert, width, {"ffn_down_exps": n_embd}),
            n_used=meta.int("expert_used_count", low=1, high=n_expert),
            gating=Gating(meta.int("expert_gating_func", 1, low=1, high=len(Gating)) or 1),
            normalise=meta.bool("expert_weights_norm", True),
            scale=meta.float("expert_weights_scale", 1.0) or 1.0,
            shared=_shared_expert(n_embd, weights) if shared else None,
        )

    def __call__(self, ops: Ops, a: Packed, x: Rows) -> Rows:
        return ops.moe(a, self.ffn_exps, x)


def build_ffn(
    hparams: Hparams, weights: Weights, block: int, *, shared: bool = False
) -> DenseFfn | MoeFfn:
    if weights.has("ffn_gate_inp") or weights.has("ffn_down_exps"):
        return MoeFfn(hparams, weights, shared=shared)
    return DenseFfn(hparams, weights, block)


def _shared_expert(n_embd: int, weights: Weights) -> SharedExpert:
    key = "expert_shared_feed_forward_length"
    width = _inner_width(weights, "ffn_down_shexp", weights.file.metadata.int(key, 0))
    return SharedExpert(
        gate_up=weights.matrix(n_embd, {"ffn_gate_shexp": width, "ffn_up_shexp": width}),
        down=weights.matrix(width, {"ffn_down_shexp": n_embd}),
        gate_inp=weights.matrix(n_embd, {"ffn_gate_inp_shexp": 1}),
    )


def _inner_width(weights: Weights, down: str, from_key: int) -> int:
    tensor = weights.file.tensors.get(f"{weights.prefix}{down}.weight")
    return from_key if tensor is None else tensor.shape[-1]
