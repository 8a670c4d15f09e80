"""Large files of random weights, shaped like real models: for timing, never for text.

Random bytes for the quants and small finite scales, written in pieces; no model of that size is
ever held as floats. Sizes follow Qwen3.5's smallest, with a vocabulary of 65,536.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.core.gguf.quants import find_format
from specdec.core.gguf.writer import TensorData, write_gguf

# Where the half-float scales of a block are, to be made small and finite.
SCALES_AT = {
    "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82), "IQ4_XS": (0,), "IQ4_NL": (0,),
}  # fmt: skip
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Sizes:
    n_layers: int = 24
    n_embd: int = 1024
    n_ff: int = 3584
    n_vocab: int = 65536
    n_heads: int = 8
    n_kv_heads: int = 2
    head_dim: int = 256
    n_delta_heads: int = 16
    delta_dim: int = 128


def write_random_qwen35(path: Path, recipe: str, sizes: Sizes = Sizes(), seed: int = 0) -> Path:
    """`recipe` is a type name for all matrices, or Q4_K_M for llama.cpp's mixture."""
    rng = np.random.default_rng(seed)
    tensors = [_tensor(rng, name, shape, recipe, sizes) for name, shape in _shapes(sizes).items()]
    write_gguf(path, _metadata(sizes), tensors, overwrite=True)
    return path


def _shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    value = s.n_delta_heads * s.delta_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (s.n_vocab, s.n_embd),
        "output_norm.weight": (s.n_embd,),
    }
    for i in range(s.n_layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (s.n_embd,),
            "post_attention_norm.weight": (s.n_embd,),
            "ffn_gate.weight": (s.n_ff, s.n_embd),
            "ffn_up.weight": (s.n_ff, s.n_embd),
            "ffn_down.weight": (s.n_embd, s.n_ff),
        }
        if i % 4 == 3:
            block |= {
                "attn_q.weight": (2 * s.n_heads * s.head_dim, s.n_embd),
                "attn_k.weight": (s.n_kv_heads * s.head_dim, s.n_embd),
                "attn_v.weight": (s.n_kv_heads * s.head_dim, s.n_embd),
                "attn_q_norm.weight": (s.head_dim,),
                "attn_k_norm.weight": (s.head_dim,),
                "attn_output.weight": (s.n_embd, s.n_heads * s.head_dim),
            }
        else:
            block |= {
                "attn_qkv.weight": (3 * value, s.n_embd),
                "attn_gate.weight": (value, s.n_embd),
                "ssm_beta.weight": (s.n_delta_heads, s.n_embd),
                "ssm_alpha.weight": (s.n_delta_heads, s.n_embd),
                "ssm_conv1d.weight": (3 * value, 4),
                "ssm_dt.bias": (s.n_delta_heads,),
                "ssm_a": (s.n_delta_heads,),
                "ssm_norm.weight": (s.delta_dim,),
                "ssm_out.weight": (s.n_embd, value),
            }
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return shapes


def _kind(name: str, shape: tuple[int, ...], recipe: str) -> str:
    if len(shape) < 2 or "conv1d" in name:
        return "F32"
    if recipe != "Q4_K_M":
        return recipe
    # What llama-quantize chooses: more bits where they matter most.
    if name == "token_embd.weight":
        return "Q6_K"
    layer = int(name.split(".")[1])
    if ("ffn_down" in name or "attn_v" in name) and (layer < 3 or layer % 3 == 2 or layer > 20):
        return "Q6_K"
    return "Q5_K" if "attn_qkv" in name else "Q4_K"


def _tensor(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], recipe: str, sizes: Sizes
) -> TensorData:
    kind = _kind(name, shape, recipe)
    form = find_format(kind)
    if kind == "F32":
        values = _small_tensor(rng, name, shape)
        return TensorData(name, shape, form, values.tobytes())
    # A step of the quants worth about 1 / sqrt(n_in): logits stay of ordinary size.
    span = {"Q8_0": 73, "Q6_K": 18 * 64, "Q4_K": 4.6 * 36, "Q5_K": 9 * 36, "Q2_K": 1.1 * 9}
    scale = shape[1] ** -0.5 / span.get(kind, 4.6)

    def pieces() -> Iterator[bytes]:
        blocks = shape[1] // form.block_size
        for first in range(0, shape[0], ROWS_AT_ONCE):
            rows = min(ROWS_AT_ONCE, shape[0] - first)
            data = rng.integers(0, 256, (rows, blocks, form.block_bytes), dtype=np.uint8)
            for at in SCALES_AT[kind]:
                half = np.float16(scale * (1.0 if at == SCALES_AT[kind][0] else 0.3))
                data[..., at : at + 2] = np.frombuffer(half.tobytes(), np.uint8)
            yield data.tobytes()

    return TensorData(name, shape, form, pieces)


def _small_tensor(
    rng: np.random.Generator, name: str, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    if name.endswith("ssm_a"):
        return -np.exp(rng.uniform(-2, 1, shape)).astype(np.float32)
    centre = 0.0 if "conv1d" in name or "dt" in name else 1.0
    return (centre + 0.3 * rng.standard_normal(shape)).astype(np.float32)


def _metadata(s: Sizes) -> dict[str, Any]:
    value = s.n_delta_heads * s.delta_dim
    keys: dict[str, Any] = {
        "context_length": 32768,
        "embedding_length": s.n_embd,
        "block_count": s.n_layers,
        "feed_forward_length": s.n_ff,
        "attention.head_count": s.n_heads,
        "attention.head_count_kv": s.n_kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": s.head_dim // 4,
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": s.delta_dim,
        "ssm.group_count": s.n_delta_heads,
        "ssm.time_step_rank": s.n_delta_heads,
        "ssm.inner_size": value,
    }
    return (
        {"general.architecture": "qwen35", "general.name": "random"}
        | {f"qwen35.{key}": value for key, value in keys.items()}
        | _vocabulary(s.n_vocab)
    )


def _vocabulary(n: int, seed: int = 1) -> dict[str, Any]:
    """Bytes, then merges of random earlier tokens, as many as a real vocabulary has."""
    from .vocab import byte_characters

    rng = np.random.default_rng(seed)
    tokens = byte_characters()
    seen, merges = set(tokens), []
    while len(tokens) < n - 1:
        left, right = (tokens[int(len(tokens) * x**2)] for x in rng.random(2))
        if len(left + right) <= 16 and left + right not in seen:
            seen.add(left + right)
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    tokens.append("<|endoftext|>")
    kinds = np.full(n, 1, np.int32)
    kinds[-1] = 3
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": n - 1,
        "tokenizer.ggml.add_bos_token": False,
    }
