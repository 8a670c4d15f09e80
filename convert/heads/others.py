"""Families with a head whose only peculiarity is a name or two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .family import MLA, Family, Names, behind_the_trunk
from .weights import CheckpointWeights

_BAILING = {
    "attention.query_key_value": "attn_qkv",
    "attention.q_proj": "attn_q",
    "attention.dense": "attn_output",
    "attention.o_proj": "attn_output",
    "attention.query_layernorm": "attn_q_norm",
    "attention.key_layernorm": "attn_k_norm",
    "attention.g_proj": "attn_gate",
    "final_layernorm": "layer_output_norm",
}
_BAILING_BIAS = {
    "mlp.gate.expert_bias": "exp_probs_b.bias",
    "mlp.gate.expert_bias.bias": "exp_probs_b.bias",
}
_NEMOTRON = {
    "norm": "attn_norm",
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.gate": "ffn_gate_inp",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
    "post_attention_norm": "post_attention_norm",
    "final_layernorm": "nextn.shared_head_norm",
}


def _two_in_one(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """Nemotron-H: an attention layer and an expert layer, which are one block in GGUF."""
    first: Names = {}
    second: Names = {}
    for name in weights.names():
        for number, names in (("0", first), ("1", second)):
            if name.startswith(f"mtp.layers.{number}."):
                names[name.removeprefix(f"mtp.layers.{number}.")] = name
    if "norm.weight" in second:
        second["post_attention_norm.weight"] = second.pop("norm.weight")
    return [first | second] if first else []


def _attention_is_full(
    config: Mapping[str, Any], n_trunk: int, n_heads: int
) -> dict[str, list[Any]]:
    return {"attention.sliding_window_pattern": [False] * n_heads}


FAMILIES = (
    Family(
        "hy_v3",
        ("hy_v3", "hunyuan_v3_moe"),
        behind_the_trunk,
        stems={
            "final_layernorm": "nextn.shared_head_norm",
            "self_attn.query_layernorm": "attn_q_norm",
            "self_attn.key_layernorm": "attn_k_norm",
            "mlp.router.gate": "ffn_gate_inp",
            "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
            "mlp.shared_mlp.up_proj": "ffn_up_shexp",
            "mlp.shared_mlp.down_proj": "ffn_down_shexp",
        },
        whole={"mlp.expert_bias": "exp_probs_b"},  # without an ending, in this family alone
    ),
    Family("cohere2moe", ("cohere2_moe",), behind_the_trunk, layer_keys=_attention_is_full),
    Family(
        "bailingmoe2",
        ("bailing_moe_v2", "bailing_moe"),
        behind_the_trunk,
        stems=_BAILING,
        whole=_BAILING_BIAS,
    ),
    Family(
        "bailingmoe3",
        ("bailing_hybrid", "bailing_moe_v3"),
        behind_the_trunk,
        stems=_BAILING
        | {name.replace("self_attn.", "attention."): stem for name, stem in MLA.items()},
        whole=_BAILING_BIAS,
    ),
    Family(
        "nemotron_h_moe",
        ("nemotron_h",),
        _two_in_one,
        stems=_NEMOTRON,
        whole={
            "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
            "mixer.gate.e_score_correction.bias": "exp_probs_b.bias",
        },
    ),
)
