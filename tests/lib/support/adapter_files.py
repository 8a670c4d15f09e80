"""LoRA adapters in llama.cpp's layout, written by the gguf package, and the same merged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import GgufFile, Tensor, open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

# Small beside the weights, and large enough to change every text.
SIZE = 0.4
_NOT_ADAPTED = ("token_embd", "conv", "ffn_gate_inp", "attn_kv_b", "attn_k_b", "attn_v_b")


def adaptable(file: GgufFile) -> list[str]:
    """Names of the matrices that products read."""
    return [
        name
        for name, tensor in file.tensors.items()
        if (len(tensor.shape) == 2 or "_exps" in name)
        and name.endswith(".weight")
        and not any(part in name for part in _NOT_ADAPTED)
        and min(tensor.shape[-2:]) > 8
    ]


def write_adapter(
    path: Path,
    model: Path,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    names: Iterable[str] | None = None,
    keys: dict[str, Any] | None = None,
) -> Path:
    """`keys`: of strings, in place of others or beside them."""
    random = np.random.default_rng(seed)
    with open_gguf(model) as file:
        writer = gguf.GGUFWriter(path, file.metadata.architecture)
        strings = {"general.type": "adapter", "adapter.type": "lora"} | (keys or {})
        for key, value in strings.items():
            writer.add_string(key, value)
        writer.add_float32("adapter.lora.alpha", alpha)
        for name in adaptable(file) if names is None else names:
            *stack, n_out, n_in = file.tensors[name].shape
            size = SIZE * float(np.abs(file.tensors[name].floats()).mean()) / (alpha / rank)
            a = random.standard_normal((*stack, rank, n_in)).astype(np.float32)
            b = random.standard_normal((*stack, n_out, rank)).astype(np.float32) * np.float32(size)
            writer.add_tensor(f"{name}.lora_a", a)
            writer.add_tensor(f"{name}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merged(model: Path, adapters: dict[Path, float], path: Path) -> Path:
    """The model with b @ a of each adapter, times alpha / rank and a scale, in its F32 weights."""
    with open_gguf(model) as file:
        tensors = [_merged(tensor, adapters) for tensor in file.tensors.values()]
        write_gguf(path, {key: file.metadata.typed(key) for key in file.metadata}, tensors)
    return path


def _merged(tensor: Tensor, adapters: dict[Path, float]) -> TensorData:
    weights, is_changed = tensor.floats().astype(np.float64), False
    for path, scale in adapters.items():
        found = {each.name: each for each in gguf.GGUFReader(path).tensors}
        if f"{tensor.name}.lora_a" not in found:
            continue
        a, b = (np.array(found[f"{tensor.name}.lora_{x}"].data, np.float64) for x in "ab")
        alpha = gguf.GGUFReader(path).get_field("adapter.lora.alpha").contents()
        weights, is_changed = weights + scale * alpha / a.shape[-2] * (b @ a), True
    if not is_changed:
        return TensorData(tensor.name, tensor.shape, tensor.format, tensor.data.tobytes())
    data = weights.astype(np.float32).tobytes()
    return TensorData(tensor.name, tensor.shape, find_format("F32"), data)
