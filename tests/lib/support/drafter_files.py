"""What files of random drafters for a target have in common, and parts of their formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]
F32, I64 = find_format("F32"), find_format("I64")
EPS, BASE = 1e-5, 10000.0


class TargetFacts(NamedTuple):
    width: int
    n_vocab: int
    n_layers: int
    vocabulary: dict[str, Any]  # metadata entries


def facts_of(target: Path) -> TargetFacts:
    with open_gguf(target) as file:
        n_vocab, width = file.tensors["token_embd.weight"].shape
        n = file.metadata.int("block_count") - file.metadata.int("nextn_predict_layers", 0)
        vocabulary = {
            name: file.metadata.entry(name)
            for name in file.metadata
            if name.startswith("tokenizer.ggml.")
        }
    return TargetFacts(width, n_vocab, n, vocabulary)


def table_and_head(target: Path) -> tuple[Doubles, Doubles]:
    """The target's embedding, and its head."""
    with open_gguf(target) as file:
        table = file.tensors["token_embd.weight"].floats().astype(np.float64)
        head = file.tensors.get("output.weight")
        return table, table if head is None else head.floats().astype(np.float64)


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Singles:
    if len(shape) == 1:
        return rng.normal(1.0, 0.2, shape).astype(np.float32)
    return rng.normal(0.0, shape[-1] ** -0.5, shape).astype(np.float32)


def draw_d2t(
    rng: np.random.Generator, n_vocab: int, n_head: int, *, shuffled: bool
) -> NDArray[np.int64]:
    d2t = np.sort(rng.choice(n_vocab, n_head, replace=False)).astype(np.int64)
    if shuffled:
        rng.shuffle(d2t)
    return d2t


def write_drafter(
    path: Path,
    arch: str,
    keys: dict[str, Any],
    vocabulary: dict[str, Any],
    values: dict[str, Singles],
    d2t: NDArray[np.int64] | None,
) -> None:
    """`keys` that are None are left out."""
    made = [TensorData(name, each.shape, F32, each) for name, each in values.items()]
    if d2t is not None:
        made.append(TensorData("d2t", d2t.shape, I64, d2t))
    named = {f"{arch}.{name}": value for name, value in keys.items() if value is not None}
    meta = {"general.architecture": arch} | named | vocabulary
    write_gguf(path, meta, made, overwrite=True)


def rms(x: Doubles, weight: Doubles | float = 1.0) -> Doubles:
    out: Doubles = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight
    return out
