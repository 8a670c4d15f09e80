"""Qwen3-Next, Qwen3.5 and 3.6: one gated-attention block under `mtp.`, all norms shifted by one.

The tiling of value heads concerns recurrent layers only, so nothing here is reordered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .family import Family, with_shared_parts

_STEMS = {
    "post_attention_layernorm": "post_attention_norm",  # which is the norm before the FFN here
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}


def _layer_keys(config: Mapping[str, Any], n_trunk: int, n_heads: int) -> dict[str, list[Any]]:
    return {"attention.recurrent_layers": [False] * n_heads}


def _family(architecture: str, *model_types: str) -> Family:
    return Family(
        architecture,
        model_types,
        with_shared_parts,
        stems=_STEMS,
        shifted_norms=True,
        layer_keys=_layer_keys,
    )


FAMILIES = (
    _family("qwen3next", "qwen3_next"),
    _family("qwen35", "qwen3_5", "qwen3_5_text"),
    _family("qwen35moe", "qwen3_5_moe", "qwen3_5_moe_text"),
)
