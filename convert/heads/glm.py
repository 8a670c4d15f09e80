"""GLM-4.5 to 4.7 and GLM-OCR: a whole layer behind the trunk, often with a copy of the head."""

from __future__ import annotations

from .family import Family, behind_the_trunk

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
)
