"""Step-3.5 and 3.7: several heads behind the trunk, each with an output matrix; norms shifted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .family import Family, Names, behind_the_trunk
from .weights import CheckpointWeights

_INFIX: Final = "transformer."
_CLAMPS: Final = {
    "swiglu_clamp_exp": "swiglu_limits",
    "swiglu_clamp_shexp": "swiglu_limits_shared",
}


def _layout(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    return [
        {inner.removeprefix(_INFIX): name for inner, name in block.items()}
        for block in behind_the_trunk(weights, n_trunk)
    ]


def _layer_keys(config: Mapping[str, Any], n_trunk: int, n_heads: int) -> dict[str, list[Any]]:
    """The lists of config.json go on behind the trunk."""
    found: dict[str, list[Any]] = {}
    kinds = config.get("mtp_layer_types")  # as transformers saves it again
    if not isinstance(kinds, list) or len(kinds) < n_heads:
        kinds = _tail(config.get("layer_types"), n_trunk, n_heads)
    if kinds := kinds[:n_heads]:
        found["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    for key, name in _CLAMPS.items():
        if limits := _tail(config.get(name), n_trunk, n_heads):
            found[key] = [float(limit or 0) for limit in limits]
    return found


def _tail(values: Any, n_trunk: int, n_heads: int) -> list[Any]:
    """Of a list with an entry for each head; nothing if it has none."""
    tail = values[n_trunk : n_trunk + n_heads] if isinstance(values, list) else []
    return tail if len(tail) == n_heads else []


FAMILIES = (
    Family(
        "step35",
        ("step3p5", "step3p7", "step3p7_text", "step3_5"),
        _layout,
        stems={
            "shared_head.output": "nextn.shared_head_head",
            "self_attn.g_proj": "attn_gate",
            "moe.gate": "ffn_gate_inp",
            "moe.gate_proj": "ffn_gate_exps",
            "moe.up_proj": "ffn_up_exps",
            "moe.down_proj": "ffn_down_exps",
            "share_expert.gate_proj": "ffn_gate_shexp",
            "share_expert.up_proj": "ffn_up_shexp",
            "share_expert.down_proj": "ffn_down_shexp",
        },
        whole={"moe.router_bias": "exp_probs_b.bias"},
        shifted_norms=True,
        layer_keys=_layer_keys,
    ),
)
