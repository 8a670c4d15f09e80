"""Small GGUF files of every family with an MTP head: names and shapes right, numbers of no use.

Written down here on their own, from what the converters of these models write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tiny_models import write
from .vocab import N_VOCAB, tokenizer_metadata

E, H, HK, D, F, FE, N = 32, 4, 2, 8, 64, 16, 4
Tensors = dict[str, NDArray[np.float32]]
Shapes = dict[str, tuple[int, ...]]

GQA: Shapes = {
    "attn_q.weight": (H * D, E),
    "attn_k.weight": (HK * D, E),
    "attn_v.weight": (HK * D, E),
    "attn_output.weight": (E, H * D),
}
HEAD_NORMS: Shapes = {"attn_q_norm.weight": (D,), "attn_k_norm.weight": (D,)}
MLA: Shapes = {
    "attn_q_a.weight": (12, E),
    "attn_q_a_norm.weight": (12,),
    "attn_q_b.weight": (H * 12, 12),
    "attn_kv_a_mqa.weight": (20, E),
    "attn_kv_a_norm.weight": (16,),
    "attn_k_b.weight": (H, 16, 8),
    "attn_v_b.weight": (H, 8, 16),
    "attn_output.weight": (E, H * 8),
}
DENSE: Shapes = {
    "ffn_gate.weight": (F, E),
    "ffn_up.weight": (F, E),
    "ffn_down.weight": (E, F),
}
MOE: Shapes = {
    "ffn_gate_inp.weight": (N, E),
    "exp_probs_b.bias": (N,),
    "ffn_gate_exps.weight": (N, FE, E),
    "ffn_up_exps.weight": (N, FE, E),
    "ffn_down_exps.weight": (N, E, FE),
}
SHARED: Shapes = {
    "ffn_gate_shexp.weight": (FE, E),
    "ffn_up_shexp.weight": (FE, E),
    "ffn_down_shexp.weight": (E, FE),
}
NEXTN: Shapes = {
    "nextn.eh_proj.weight": (E, 2 * E),
    "nextn.enorm.weight": (E,),
    "nextn.hnorm.weight": (E,),
}
OWN: Shapes = {
    "nextn.embed_tokens.weight": (N_VOCAB, E),
    "nextn.shared_head_head.weight": (N_VOCAB, E),
}
HEAD_NORM: Shapes = {"nextn.shared_head_norm.weight": (E,)}
PRE: Shapes = {"attn_norm.weight": (E,), "ffn_norm.weight": (E,)}
POST: Shapes = {"attn_norm.weight": (E,), "post_attention_norm.weight": (E,)}
BIASES: Shapes = {"attn_q.bias": (H * D,), "attn_k.bias": (HK * D,), "attn_v.bias": (HK * D,)}
SINKS: Shapes = {"attn_sinks.weight": (H,)}
FUSED: Shapes = {
    "attn_qkv.weight": ((H + 2 * HK) * D, E),
    "attn_output.weight": (E, H * D),
}
MLA_KEYS: dict[str, Any] = {
    "attention.kv_lora_rank": 16,
    "attention.key_length_mla": 12,
    "attention.value_length_mla": 8,
    "rope.dimension_count": 4,
}

WINDOWS: dict[str, Any] = {"attention.sliding_window": 16}
GATED: dict[str, Any] = {"expert_gating_func": 2}
WITH_SHARED: dict[str, Any] = {**GATED, "expert_shared_count": 1}

# architecture: (a layer of the trunk, a block of a head, heads, keys)
LAYOUTS: dict[str, tuple[Shapes, Shapes, int, dict[str, Any]]] = {
    "glm4moe": (
        POST | GQA | BIASES | MOE | SHARED,
        POST | GQA | BIASES | MOE | SHARED | NEXTN | HEAD_NORM | OWN,
        1,
        WITH_SHARED,
    ),
    "deepseek2": (
        PRE | MLA | MOE | SHARED,
        PRE | MLA | MOE | SHARED | NEXTN | HEAD_NORM | OWN,
        1,
        MLA_KEYS | WITH_SHARED,
    ),
    "mimo2": (
        PRE | FUSED | MOE,
        PRE | FUSED | SINKS | DENSE | NEXTN | {"layer_output_norm.weight": (E,)},
        3,
        GATED | WINDOWS,
    ),
    "step35": (
        PRE | GQA | HEAD_NORMS | {"attn_gate.weight": (H, E)} | MOE | SHARED,
        PRE | GQA | HEAD_NORMS | {"attn_gate.weight": (H, E)} | DENSE | NEXTN | HEAD_NORM | OWN,
        3,
        GATED | WINDOWS,
    ),
    "exaone-moe": (
        PRE | GQA | HEAD_NORMS | MOE | SHARED,
        PRE | GQA | HEAD_NORMS | DENSE | NEXTN | HEAD_NORM,
        1,
        GATED | WINDOWS,
    ),
    "hy_v3": (
        PRE | GQA | HEAD_NORMS | MOE | SHARED,
        PRE | GQA | HEAD_NORMS | MOE | SHARED | NEXTN | HEAD_NORM,
        1,
        GATED,
    ),
    "cohere2moe": (
        {"attn_norm.weight": (E,)} | GQA | MOE | SHARED,
        {"attn_norm.weight": (E,)} | GQA | MOE | SHARED | NEXTN,
        1,
        WINDOWS | {"logit_scale": 1.0, "leading_dense_block_count": 0},
    ),
    "bailingmoe3": (
        PRE | MLA | MOE,
        PRE | MLA | MOE | NEXTN | {"layer_output_norm.weight": (E,)},
        1,
        MLA_KEYS
        | WITH_SHARED
        | {
            "leading_dense_block_count": 0,
            "ssm.conv_kernel": 4,
            "kda.head_dim": D,
            "kda.gate_lower_bound": -5.0,
        },
    ),
    "nemotron_h_moe": (
        {"attn_norm.weight": (E,)} | GQA,
        POST | GQA | {k: v for k, v in MOE.items() if "gate_exps" not in k} | NEXTN | HEAD_NORM,
        1,
        {
            "attention.layer_norm_epsilon": 1e-6,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.group_count": 1,
            "ssm.time_step_rank": 4,
            "ssm.inner_size": 32,
        },
    ),
}
TRUNK_LAYERS = 2


def family_file(
    path: Path,
    architecture: str,
    edit: Callable[[dict[str, Any], Tensors], None] | None = None,
    *,
    head: bool = True,
) -> Path:
    """`edit` may change keys and tensors before they are written."""
    layer, block, n_heads, more = LAYOUTS[architecture]
    n_heads = n_heads if head else 0
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB, E),
        "output_norm.weight": (E,),
        "output.weight": (N_VOCAB, E),
    }
    for n in range(TRUNK_LAYERS):
        shapes |= {f"blk.{n}.{stem}": shape for stem, shape in layer.items()}
    for n in range(TRUNK_LAYERS, TRUNK_LAYERS + n_heads):
        shapes |= {f"blk.{n}.{stem}": shape for stem, shape in block.items()}
    rng = np.random.default_rng(0)
    tensors = {name: numbers(rng, name, shape) for name, shape in shapes.items()}
    keys: dict[str, Any] = {
        "context_length": 512,
        "embedding_length": E,
        "block_count": TRUNK_LAYERS + n_heads,
        "feed_forward_length": F,
        "attention.head_count": H,
        "attention.head_count_kv": HK,
        "attention.key_length": D,
        "attention.value_length": D,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": D,
        "expert_count": N,
        "expert_used_count": 2,
        "expert_feed_forward_length": FE,
        **more,
    }
    if n_heads:
        keys["nextn_predict_layers"] = n_heads
    if "attention.sliding_window" in keys:
        keys["attention.sliding_window_pattern"] = [True] * (TRUNK_LAYERS + n_heads)
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    if edit is not None:
        edit(named, tensors)
    write(path, architecture, tokenizer_metadata() | named, tensors)
    return path


def numbers(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    middle = 1.0 if "norm" in name else 0.0
    return (middle + 0.1 * rng.standard_normal(shape)).astype(np.float32)
