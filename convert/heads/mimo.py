"""MiMo-V2: three heads with windowed attention, sinks, and their norm under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .family import Family, of_their_own


def _layer_keys(config: Mapping[str, Any], n_trunk: int, n_heads: int) -> dict[str, list[Any]]:
    return {"attention.sliding_window_pattern": [True] * n_heads}


FAMILIES = (
    Family(
        "mimo2",
        ("mimo_v2_flash", "mimo_v2"),
        of_their_own,
        stems={
            "pre_mlp_layernorm": "ffn_norm",
            "final_layernorm": "layer_output_norm",
        },
        whole={
            "self_attn.attention_sink_bias": "attn_sinks.weight",
            "self_attn.sinks": "attn_sinks.weight",
        },
        fuses_qkv=True,
        layer_keys=_layer_keys,
    ),
)
