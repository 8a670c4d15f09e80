"""A model file of any size that takes no room: header and tensor table, and a hole for the data.

Norms, biases and the other small float tensors may have numbers of their own; all else is zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.core.gguf.encode import exact_types
from nextn.core.gguf.header import DEFAULT_ALIGNMENT
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.tensors import align
from nextn.core.gguf.writer import TensorData, _head

from .llama_quantize import is_float
from .random_file import vocabulary
from .random_shapes import Sizes, model_keys, tensor_shapes

HUGE = Sizes(
    n_layers=64, n_embd=8192, n_ff=49152, n_vocab=4096,
    n_heads=64, n_kv_heads=8, head_dim=128, n_delta_heads=64,
)  # fmt: skip
Values = Callable[[str, tuple[int, ...]], NDArray[np.float32]]


def write_sparse_qwen35(path: Path, recipe: str, sizes: Sizes = HUGE) -> Path:
    """All numbers are zero, and none of them is stored."""
    shapes = tensor_shapes(sizes)
    kinds = {name: "F32" if is_float(name, shape) else recipe for name, shape in shapes.items()}
    return write_sparse(path, sizes, kinds, vocabulary(sizes.n_vocab))


def write_sparse(
    path: Path,
    sizes: Sizes,
    kinds: Mapping[str, str],
    vocabulary: Mapping[str, Any],
    values: Values | None = None,
) -> Path:
    """`kinds`: the type of each tensor. `values`: the numbers of those that are F32."""
    shapes = tensor_shapes(sizes)
    tensors = [TensorData(n, shape, find_format(kinds[n]), b"") for n, shape in shapes.items()]
    metadata = model_keys(sizes) | dict(vocabulary)
    with path.open("wb") as file:
        file.write(_head(exact_types(metadata), [tensors], 0, DEFAULT_ALIGNMENT))
        place = file.tell()
        for tensor in tensors:
            if values is not None and tensor.format.name == "F32":
                file.seek(place)
                file.write(values(tensor.name, tensor.shape).tobytes())
            place += align(tensor.n_bytes, DEFAULT_ALIGNMENT)
    os.truncate(path, place)
    return path
