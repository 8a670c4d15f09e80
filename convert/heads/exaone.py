"""K-EXAONE and EXAONE 4.5: heads under `mtp.`; projection and norms are shared by all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .family import Family, with_shared_parts


def _layer_keys(config: Mapping[str, Any], n_trunk: int, n_heads: int) -> dict[str, list[Any]]:
    """Full attention, unless the configuration says otherwise."""
    kinds = config.get("mtp_layer_types")
    if not isinstance(kinds, list):
        kinds = (config.get("layer_types") or [])[n_trunk:]
    if len(kinds) < n_heads:
        kinds = ["full_attention"] * n_heads
    windowed = [kind == "sliding_attention" for kind in kinds[:n_heads]]
    return {"attention.sliding_window_pattern": windowed}


FAMILIES = (
    Family("exaone-moe", ("exaone_moe",), with_shared_parts, layer_keys=_layer_keys),
    Family(
        "exaone4",
        ("exaone4", "exaone4_5", "exaone4_5_text"),
        with_shared_parts,
        stems={
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
        layer_keys=_layer_keys,
    ),
)
