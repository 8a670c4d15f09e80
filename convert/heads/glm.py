"""GLM-4.5 to 5.3 and GLM-OCR: a whole layer behind the trunk, often with a copy of the head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .family import INDEXER, MLA, Family, behind_the_trunk, clamps


def _layer_keys(config: Mapping[str, Any], n_trunk: int, n_heads: int) -> dict[str, list[Any]]:
    """One key-value head, where layers with a recurrent state have none."""
    return {"attention.head_count_kv": [1] * n_heads} | clamps(config, n_heads)


FAMILIES = (
    Family(
        "glm4moe",
        ("glm4_moe", "glm4v_moe", "glm4v_moe_text"),
        behind_the_trunk,
        stems={"post_attention_layernorm": "post_attention_norm"},  # the norm before the FFN
    ),
    Family(
        "glm4",
        ("glm4", "glm_ocr", "glm_ocr_text"),
        behind_the_trunk,
        stems={
            "post_attention_layernorm": "ffn_norm",
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
            "mlp.gate_up_proj": "ffn_up",
        },
    ),
    Family(
        "glm5-next",
        ("glm5_next", "glm5_next_text"),
        behind_the_trunk,
        stems={**MLA, **INDEXER},
        whole={
            "self_attn.indexer.index_kpool_compress_ape": "indexer_compressor_ape.weight",
            "self_attn.indexer.index_kpool_compress_gate": "indexer_compressor_gate.weight",
        },
        layer_keys=_layer_keys,
    ),
)
