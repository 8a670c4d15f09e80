"""A model file of any size that takes no room: header and tensor table, and a hole for the data."""

from __future__ import annotations

import os
from pathlib import Path

from specdec.core.gguf.encode import exact_types
from specdec.core.gguf.header import DEFAULT_ALIGNMENT
from specdec.core.gguf.quants import find_format
from specdec.core.gguf.tensors import align
from specdec.core.gguf.writer import TensorData, _head

from .llama_quantize import is_float
from .random_file import vocabulary
from .random_shapes import Sizes, model_keys, tensor_shapes

HUGE = Sizes(
    n_layers=64, n_embd=8192, n_ff=49152, n_vocab=4096,
    n_heads=64, n_kv_heads=8, head_dim=128, n_delta_heads=64,
)  # fmt: skip


def write_sparse_qwen35(path: Path, recipe: str, sizes: Sizes = HUGE) -> Path:
    """All numbers are zero, and none of them is stored."""
    shapes = tensor_shapes(sizes)
    kinds = {name: "F32" if is_float(name, shape) else recipe for name, shape in shapes.items()}
    tensors = [TensorData(n, shape, find_format(kinds[n]), b"") for n, shape in shapes.items()]
    metadata = model_keys(sizes) | vocabulary(sizes.n_vocab)
    head = _head(exact_types(metadata), [tensors], 0, DEFAULT_ALIGNMENT)
    path.write_bytes(head)
    size = sum(align(tensor.n_bytes, DEFAULT_ALIGNMENT) for tensor in tensors)
    os.truncate(path, len(head) + size)
    return path
