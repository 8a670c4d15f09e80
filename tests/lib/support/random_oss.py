"""A file in the shape of gpt-oss, smaller: experts in MXFP4 with biases, all else in Q8_0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .random_file import Shapes, write_kinds

N_LAYERS, N_EMBD, N_FF, N_VOCAB = 8, 1440, 1440, 65536
HEADS, KV_HEADS, DIM, EXPERTS, USED = 32, 8, 64, 32, 4


def write_random_oss(path: Path) -> Path:
    """1.1 GB: 1.6 billion weights of experts, of which a token meets an eighth."""
    shapes = _shapes()
    kinds = {name: _kind(name, shape) for name, shape in shapes.items()}
    return write_kinds(path, _keys(), shapes, kinds, N_VOCAB)


def _kind(name: str, shape: tuple[int, ...]) -> str:
    if len(shape) == 1 or name.endswith(".bias") or "ffn_gate_inp" in name:
        return "F32"
    return "MXFP4" if "_exps" in name else "Q8_0"


def _shapes() -> Shapes:
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB, N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "output.weight": (N_VOCAB, N_EMBD),
    }
    block: Shapes = {
        "attn_norm.weight": (N_EMBD,),
        "post_attention_norm.weight": (N_EMBD,),
        "attn_sinks.weight": (HEADS,),
    }
    for name, n_out, n_in in (
        ("attn_q", HEADS * DIM, N_EMBD),
        ("attn_k", KV_HEADS * DIM, N_EMBD),
        ("attn_v", KV_HEADS * DIM, N_EMBD),
        ("attn_output", N_EMBD, HEADS * DIM),
        ("ffn_gate_inp", EXPERTS, N_EMBD),
    ):
        block |= {f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)}
    for name, n_out, n_in in (
        ("ffn_gate_exps", N_FF, N_EMBD),
        ("ffn_up_exps", N_FF, N_EMBD),
        ("ffn_down_exps", N_EMBD, N_FF),
    ):
        block |= {f"{name}.weight": (EXPERTS, n_out, n_in), f"{name}.bias": (EXPERTS, n_out)}
    for i in range(N_LAYERS):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return shapes


def _keys() -> dict[str, Any]:
    keys: dict[str, Any] = {
        "context_length": 32768,
        "embedding_length": N_EMBD,
        "block_count": N_LAYERS,
        "feed_forward_length": N_FF,
        "expert_feed_forward_length": N_FF,
        "expert_count": EXPERTS,
        "expert_used_count": USED,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": DIM,
        "attention.value_length": DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 128,
        "rope.freq_base": 150000.0,
        "rope.dimension_count": DIM,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
    }
    named = {f"gpt-oss.{key}": value for key, value in keys.items()}
    return {"general.architecture": "gpt-oss", "general.name": "random gpt-oss"} | named
