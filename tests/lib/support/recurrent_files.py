"""Large files of random weights of models with Mamba-2 layers and with short convolutions: for
timing, never for text. Shapes are those of Granite 4 H 1B, with fewer layers, and of LFM2 1.2B."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .random_file import Shapes, write_shapes

N_VOCAB = 65536


def granite_h(n_layers: int = 24) -> tuple[dict[str, Any], Shapes]:
    """Every twelfth layer attends. 48 heads of 64 values, states of 128."""
    width, ff, inner, heads, state = 1536, 4096, 3072, 48, 128
    attends = [n % 12 == 5 for n in range(n_layers)]
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, width), "output_norm.weight": (width,)}
    for n, is_attention in enumerate(attends):
        own = _ffn(width, ff) | (_attention(width) if is_attention else {})
        if not is_attention:
            channels = inner + 2 * state
            own |= {"ssm_in.weight": (2 * inner + 2 * state + heads, width)}
            own |= {"ssm_conv1d.weight": (channels, 4), "ssm_conv1d.bias": (channels,)}
            own |= {"ssm_dt.bias": (heads,), "ssm_a": (heads, 1), "ssm_d": (heads, 1)}
            own |= {"ssm_norm.weight": (1, inner), "ssm_out.weight": (width, inner)}
        shapes |= {f"blk.{n}.{name}": shape for name, shape in own.items()}
    keys = {
        "block_count": n_layers, "context_length": 32768, "embedding_length": width,
        "feed_forward_length": ff, "attention.head_count": 12, "vocab_size": N_VOCAB,
        "attention.head_count_kv": [4 * has for has in attends], "expert_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 128,
        "rope.scaling.finetuned": False, "ssm.conv_kernel": 4, "ssm.state_size": state,
        "ssm.group_count": 1, "ssm.inner_size": inner, "ssm.time_step_rank": heads,
        "attention.scale": 0.0078125, "embedding_scale": 12.0, "residual_scale": 0.22,
        "logit_scale": 6.0, "expert_used_count": 0,
    }  # fmt: skip
    return _metadata("granitehybrid", keys), shapes


def lfm2(n_layers: int = 16) -> tuple[dict[str, Any], Shapes]:
    """Six layers of sixteen attend."""
    width, ff = 2048, 8192
    attends = [n in (2, 5, 8, 10, 12, 14) for n in range(n_layers)]
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, width), "token_embd_norm.weight": (width,)}
    for n, is_attention in enumerate(attends):
        own = _ffn(width, ff) | (_attention(width) if is_attention else {})
        if is_attention:
            own |= {"attn_q_norm.weight": (64,), "attn_k_norm.weight": (64,)}
        else:
            own |= {"shortconv.in_proj.weight": (3 * width, width)}
            own |= {"shortconv.conv.weight": (width, 3)}
            own |= {"shortconv.out_proj.weight": (width, width)}
        shapes |= {f"blk.{n}.{name}": shape for name, shape in own.items()}
    keys = {
        "block_count": n_layers, "context_length": 32768, "embedding_length": width,
        "feed_forward_length": ff, "attention.head_count": 32, "vocab_size": N_VOCAB,
        "attention.head_count_kv": [8 * has for has in attends], "shortconv.l_cache": 3,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e6,
    }  # fmt: skip
    return _metadata("lfm2", keys), shapes


def _ffn(width: int, ff: int) -> Shapes:
    """With the norms of a block."""
    return {
        "attn_norm.weight": (width,), "ffn_norm.weight": (width,), "ffn_gate.weight": (ff, width),
        "ffn_up.weight": (ff, width), "ffn_down.weight": (width, ff),
    }  # fmt: skip


def _attention(width: int) -> Shapes:
    return {
        "attn_q.weight": (width, width), "attn_output.weight": (width, width),
        "attn_k.weight": (512, width), "attn_v.weight": (512, width),
    }  # fmt: skip


def _metadata(architecture: str, keys: dict[str, Any]) -> dict[str, Any]:
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    return {"general.architecture": architecture} | named


FILES = {"granitehybrid": granite_h, "lfm2": lfm2}


def write_recurrent(path: Path, name: str, mixture: str = "Q4_K_M") -> Path:
    metadata, shapes = FILES[name]()
    return write_shapes(path, metadata, shapes, mixture, N_VOCAB)
