"""DeepSeek V4: blocks of their own under `mtp.N.`, with names of their own, in hyper-connections.

The streams are mixed before attention and experts by weights of the block (`hc_attn_*`,
`hc_ffn_*`), and mixed down to one row at the end by `hc_head_*`. For the last of these in a head
GGUF has no name: whoever runs it takes those of the model, and llama.cpp refuses a file that has
tensors which it does not know. So they are left out, and the user is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from .family import Family, Names, clamps, numbered
from .weights import CheckpointWeights

_EXPERT: Final = re.compile(r"ffn\.experts\.(\d+)\.w([123])\.weight")
_PARTS: Final = {"1": "gate", "2": "down", "3": "up"}
_MIXERS: Final = tuple(
    f"hc_{place}_{part}" for place in ("attn", "ffn") for part in ("fn", "base", "scale")
)


def _layout(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    return [
        {_EXPERT.sub(_expert, inner): name for inner, name in block.items()}
        for block in numbered(weights, "mtp.", 0)
    ]


def _expert(match: re.Match[str]) -> str:
    return f"mlp.experts.{match[1]}.{_PARTS[match[2]]}_proj.weight"


def _layer_keys(config: Mapping[str, Any], n_trunk: int, n_heads: int) -> dict[str, list[Any]]:
    return {"attention.compress_ratios": [0] * n_heads} | clamps(config, n_heads)


FAMILIES = (
    Family(
        "deepseek4",
        ("deepseek_v4",),
        _layout,
        stems={
            "e_proj": "nextn.e_proj",  # these two become `nextn.eh_proj`
            "h_proj": "nextn.h_proj",
            "norm": "nextn.shared_head_norm",
            "attn_norm": "attn_norm",
            "attn.wq_a": "attn_q_a",
            "attn.q_norm": "attn_q_a_norm",
            "attn.wq_b": "attn_q_b",
            "attn.wkv": "attn_kv",
            "attn.kv_norm": "attn_kv_a_norm",
            "attn.wo_a": "attn_output_a",
            "attn.wo_b": "attn_output_b",
            "ffn_norm": "ffn_norm",
            "ffn.gate": "ffn_gate_inp",
            "ffn.shared_experts.w1": "ffn_gate_shexp",
            "ffn.shared_experts.w2": "ffn_down_shexp",
            "ffn.shared_experts.w3": "ffn_up_shexp",
        },
        whole={
            "attn.attn_sink": "attn_sinks.weight",
            "ffn.gate.bias": "exp_probs_b.bias",
            **{name: f"{name}.weight" for name in _MIXERS},
        },
        needs=tuple(f"{name}.weight" for name in _MIXERS),
        left_out=("hc_head_fn", "hc_head_base", "hc_head_scale"),
        layer_keys=_layer_keys,
    ),
)
