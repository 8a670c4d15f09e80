"""dots3-note: a windowed MLA layer behind the trunk, its embedding under `mtp.`.

The model multiplies what comes out of the norms of both latents by a constant; GGUF has it in the
norms. Windowed layers have sizes of their own (`swa_*` of config.json), and the head is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from .family import INDEXER, MLA, Family, Names, behind_the_trunk
from .weights import CheckpointWeights

_EMBEDDING: Final = "mtp.embed_tokens.weight"
_RANKS: Final = {"attn_q_a_norm.weight": "q_lora_rank", "attn_kv_a_norm.weight": "kv_lora_rank"}


def _layout(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    blocks = behind_the_trunk(weights, n_trunk)
    if blocks and _EMBEDDING in weights:
        blocks[0]["embed_tokens.weight"] = _EMBEDDING
    return blocks


def _factors(weights: CheckpointWeights) -> dict[str, float]:
    if weights.config.get("apply_mla_qkv_lora_rescale", True) is False:
        return {}
    width = weights.number("hidden_size")
    return {stem: math.sqrt(width / weights.number(f"swa_{k}", k)) for stem, k in _RANKS.items()}


def _layer_keys(config: Mapping[str, Any], n_trunk: int, n_heads: int) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"attention.sliding_window_pattern": [True] * n_heads}
    if isinstance(n := config.get("swa_num_attention_heads"), int):
        found["attention.head_count"] = [n] * n_heads
    return found


FAMILIES = (
    Family(
        "dots3note",
        ("dots3_note", "dots3_note_text"),
        _layout,
        stems={
            **MLA,
            **INDEXER,
            "self_attn.k_rope_only_layernorm": "attn_k_norm",
            "self_attn.g_proj": "attn_gate",
        },
        factors=_factors,
        sizes="swa_",
        layer_keys=_layer_keys,
    ),
)
