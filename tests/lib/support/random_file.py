"""Large files of random weights, shaped like real models: for timing, never for text.

Random bytes for the quants and small finite scales, written in pieces; no model of that size is
ever held as floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.core.gguf.quants import find_format
from nextn.core.gguf.writer import TensorData, write_gguf

from .llama_quantize import is_float, mixture_types
from .random_shapes import QWEN35_800M, Shapes, Sizes, model_keys, tensor_shapes
from .vocab import byte_characters

__all__ = ["Shapes", "Sizes", "write_kinds", "write_random", "write_random_qwen35", "write_shapes"]

# Where the half-float scales of a block are, to be made small and finite.
SCALES_AT = {
    "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82), "IQ4_XS": (0,), "IQ4_NL": (0,),
}  # fmt: skip
ROWS_AT_ONCE = 4096


def write_random(path: Path, mixture: str, sizes: Sizes = QWEN35_800M, seed: int = 0) -> Path:
    """With the types that llama-quantize gives; `mixture` is one of its names."""
    return write_shapes(path, model_keys(sizes), tensor_shapes(sizes), mixture, sizes.n_vocab, seed)


def write_shapes(
    path: Path, metadata: dict[str, Any], shapes: Shapes, mixture: str, n_vocab: int, seed: int = 0
) -> Path:
    """Of any architecture."""
    return write_kinds(path, metadata, shapes, mixture_types(shapes, mixture), n_vocab, seed)


def write_random_qwen35(path: Path, recipe: str, sizes: Sizes = QWEN35_800M, seed: int = 0) -> Path:
    """All matrices of one type, or Q4_K_M for llama.cpp's mixture."""
    if recipe == "Q4_K_M":
        return write_random(path, recipe, sizes, seed)
    shapes = tensor_shapes(sizes)
    kinds = {name: "F32" if is_float(name, shape) else recipe for name, shape in shapes.items()}
    return write_kinds(path, model_keys(sizes), shapes, kinds, sizes.n_vocab, seed)


def write_kinds(
    path: Path,
    metadata: dict[str, Any],
    shapes: Shapes,
    kinds: dict[str, str],
    n_vocab: int,
    seed: int = 0,
) -> Path:
    """With a type for each tensor."""
    rng = np.random.default_rng(seed)
    tensors = [_tensor(rng, name, shape, kinds[name]) for name, shape in shapes.items()]
    write_gguf(path, metadata | vocabulary(n_vocab), tensors, overwrite=True)
    return path


def _tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: str) -> TensorData:
    form = find_format(kind)
    if kind == "F32":
        values = small_tensor(rng, name, shape)
        return TensorData(name, shape, form, values.tobytes())
    n_in = shape[-1]
    scales = block_scales(kind, n_in)
    n_rows, n_blocks = int(np.prod(shape[:-1])), n_in // form.block_size

    def pieces() -> Iterator[bytes]:
        for first in range(0, n_rows, ROWS_AT_ONCE):
            rows = min(ROWS_AT_ONCE, n_rows - first)
            data = rng.integers(0, 256, (rows, n_blocks, form.block_bytes), dtype=np.uint8)
            for at, scale in scales.items():
                data[..., at : at + len(scale)] = scale
            yield data.tobytes()

    return TensorData(name, shape, form, pieces)


def block_scales(kind: str, n_in: int) -> dict[int, NDArray[np.uint8]]:
    """The half floats of a block, by where they are: a step of the quants is worth about
    1 / sqrt(n_in), so that logits stay of ordinary size. Of MXFP4 it is an exponent."""
    if kind == "MXFP4":
        return {0: np.array([round(127 + np.log2(n_in**-0.5 / 2.7))], np.uint8)}
    span = {"Q8_0": 73, "Q6_K": 18 * 64, "Q4_K": 4.6 * 36, "Q5_K": 9 * 36, "Q2_K": 1.1 * 9}
    scale, first = n_in**-0.5 / span.get(kind, 4.6), SCALES_AT[kind][0]
    halves = {at: np.float16(scale * (1.0 if at == first else 0.3)) for at in SCALES_AT[kind]}
    return {at: np.frombuffer(half.tobytes(), np.uint8) for at, half in halves.items()}


def small_tensor(
    rng: np.random.Generator, name: str, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """One that is kept as floats."""
    if name.endswith("ssm_a"):
        return -np.exp(rng.uniform(-2, 1, shape)).astype(np.float32)
    if "ffn_gate_inp" in name:
        values: NDArray[np.float64] = shape[-1] ** -0.5 * rng.standard_normal(shape)
        return values.astype(np.float32)
    centre = 0.0 if "conv1d" in name or "dt" in name or name.endswith(".bias") else 1.0
    return (centre + 0.3 * rng.standard_normal(shape)).astype(np.float32)


@cache
def vocabulary(n: int, seed: int = 1) -> dict[str, Any]:
    """Bytes, then merges of random earlier tokens, as many as a real vocabulary has."""
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
