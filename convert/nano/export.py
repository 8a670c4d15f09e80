"""A trained network as a GGUF file, with the names and keys of a converted checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import ConfigError
from ...core.gguf.quants import find_format
from ...core.gguf.writer import TensorData, write_gguf
from ..checkpoint.safetensors import Floats, StoredTensor
from ..hf.matrix_rows import StoredMatrix
from ..hf.metadata_keys import model_keys
from ..hf.model_config import ModelConfig, find_family
from ..hf.model_sizes import read_sizes
from ..hf.rope_setting import read_rope
from ..hf.stored_names import plain_name
from ..hf.tensor_map import TensorMap
from ..quantize.native_quantizer import encode
from .nano_network import Network
from .nano_shapes import NanoShape
from .nano_vocabulary import NanoVocabulary

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7}  # general.file_type
LICENSE = "PSF-2.0"
DESCRIPTION = (
    "A small model of Python, trained on the sources of Python's standard library, "
    "Copyright (c) Python Software Foundation; licensed under the PSF License Agreement."
)
# Small, and read as floats by the kernels: the convolution and the two rows per value head.
_KEPT = ("norm", "ssm_conv1d", "ssm_alpha", "ssm_beta")


class _ArraySource:
    """An array as the bytes of a checkpoint's file."""

    label = "the network"

    def __init__(self, array: Floats) -> None:
        self._data = np.ascontiguousarray(array, "<f4").tobytes()
        self.size = len(self._data)

    def read(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]

    def close(self) -> None:
        return


def write_model(
    path: Path, network: Network, vocabulary: NanoVocabulary, kind: str = "Q8_0"
) -> None:
    if kind not in FILE_TYPES:
        raise ConfigError(f"matrices can be {', '.join(FILE_TYPES)}, not {kind}")
    shape = network.shape
    config = ModelConfig.of("the network", _config(shape))
    family = find_family(config)
    sizes = read_sizes(config, family, shape.num_mtp_layers)
    rope = read_rope(config, family, sizes.head_dim)
    mapping = TensorMap(family, sizes, config.label)
    for name, value in network.state_dict().items():
        if name != "lm_head.weight" or not shape.tie_word_embeddings:
            source = _ArraySource(value.detach().float().cpu().numpy())
            stored = StoredTensor(name, "F32", tuple(value.shape), 0, source)
            mapping.add(plain_name(name), StoredMatrix(stored))
    tensors = []
    for name, tensor in mapping.finish().items():
        rows = np.concatenate([values for _, values in tensor.slabs()])
        tensors.append(tensor_data(name, rows.reshape(tensor.shape), kind))
    metadata = {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": "nextn nano" if shape.is_hybrid else "nextn nano draft",
        "general.description": DESCRIPTION,
        "general.license": LICENSE,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": 2,
        **model_keys(config, family, sizes, rope),
        **vocabulary.metadata(),
    }
    write_gguf(path, metadata, tensors, overwrite=True)


def _config(shape: NanoShape) -> dict[str, Any]:
    """The network's sizes as config.json would hold them."""
    third = shape.rotary_dim // 6  # sections over time, height, width; all the same for text
    return asdict(shape) | {
        "model_type": "qwen3_5_text" if shape.is_hybrid else "qwen3",
        "linear_key_head_dim": shape.linear_head_dim,
        "linear_value_head_dim": shape.linear_head_dim,
        "rope_parameters": {"mrope_section": [shape.rotary_dim // 2 - 2 * third, third, third]},
    }


def tensor_data(name: str, array: Floats, kind: str) -> TensorData:
    small = array.ndim < 2 or any(part in name for part in _KEPT)
    fmt = find_format("F32" if small else kind)
    if array.shape[-1] % fmt.block_size:
        raise ConfigError(
            f"{name}: a row of {array.shape[-1]} numbers is not whole blocks of {fmt.block_size}"
        )
    return TensorData(name, array.shape, fmt, encode(array, fmt))
