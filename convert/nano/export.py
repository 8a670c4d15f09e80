"""A trained network as a GGUF file, with the names and keys of a converted checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import ConfigError
from ...core.gguf.quants import find_format
from ...core.gguf.reader import open_gguf
from ...core.gguf.writer import TensorData, write_gguf
from ..checkpoint.safetensors import Floats, StoredTensor
from ..hf.checkpoint_family import CheckpointFamily
from ..hf.families import find_family
from ..hf.matrix_rows import StoredMatrix
from ..hf.metadata_keys import model_keys
from ..hf.model_config import ModelConfig
from ..hf.model_sizes import ModelSizes, read_sizes
from ..hf.rope_setting import read_rope
from ..hf.stored_names import plain_name
from ..hf.tensor_map import TensorMap
from ..quantize.native_quantizer import encode
from .nano_network import Network
from .nano_shapes import NanoShape
from .nano_vocabulary import NanoVocabulary

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7}  # general.file_type
LICENSE = "PSF-2.0"
PACKAGE_LICENSES = "MIT AND BSD-3-Clause AND BSD-2-Clause AND Apache-2.0 AND ISC"
DESCRIPTION = (
    "A small model of Python, trained on the sources of Python's standard library, "
    "Copyright (c) Python Software Foundation; licensed under the PSF License Agreement."
)
PACKAGES = " Also trained on packages under their own licences: nextn's convert/nano/packages.txt."
# A small model's unlikely tokens are mostly wrong, and it repeats lines without a penalty.
# Chosen on 72 function headers of the held-out files, which are not judged.
SAMPLING = {
    "general.sampling.temp": 0.8,
    "general.sampling.top_p": 0.8,
    "general.sampling.penalty_repeat": 1.15,
    "general.sampling.penalty_last_n": 32,
}
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
    path: Path,
    network: Network,
    vocabulary: NanoVocabulary,
    kind: str = "Q8_0",
    *,
    has_packages: bool = False,
) -> None:
    """`has_packages`: it was trained on packages beside the standard library."""
    if kind not in FILE_TYPES:
        raise ConfigError(f"matrices can be {', '.join(FILE_TYPES)}, not {kind}")
    shape = network.shape
    config, family, sizes = _described(shape)
    rope = read_rope(config, family, sizes.head_dim)
    weights = {name: value.detach().float().cpu().numpy() for name, value in _stored(network)}
    tensors = [tensor_data(name, array, kind) for name, array in gguf_arrays(shape, weights)]
    metadata = {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": "nextn nano" if shape.is_hybrid else "nextn nano draft",
        "general.description": DESCRIPTION + (PACKAGES if has_packages else ""),
        "general.license": f"{LICENSE} AND {PACKAGE_LICENSES}" if has_packages else LICENSE,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": 2,
        **SAMPLING,
        **model_keys(config, family, sizes, rope),
        **vocabulary.metadata(),
    }
    write_gguf(path, metadata, tensors, overwrite=True)


def _stored(network: Network) -> Iterator[tuple[str, Tensor]]:
    for name, value in network.state_dict().items():
        if name != "lm_head.weight" or not network.shape.tie_word_embeddings:
            yield name, value


def gguf_arrays(shape: NanoShape, weights: dict[str, Floats]) -> Iterator[tuple[str, Floats]]:
    """The arrays of a GGUF file, from those of a network by their names."""
    config, family, sizes = _described(shape)
    mapping = TensorMap(family, config, sizes)
    for name, value in weights.items():
        stored = StoredTensor(name, "F32", tuple(value.shape), 0, _ArraySource(value))
        mapping.add(plain_name(name), StoredMatrix(stored))
    for name, tensor in mapping.finish().items():
        rows = np.concatenate([values for _, values in tensor.slabs()])
        yield name, rows.reshape(tensor.shape)


def read_weights(path: Path, network: Network) -> None:
    """What `write_model` wrote, back into a network of the same shape.

    Of each weight its numbered elements go the way to GGUF, and show where they lie in the file.
    """
    with open_gguf(path) as file, torch.no_grad():
        for name, value in _stored(network):
            numbered = np.arange(value.numel(), dtype=np.float32).reshape(value.shape)
            ((target, places),) = gguf_arrays(network.shape, {name: numbered})
            if target not in file.tensors or file.tensors[target].shape != places.shape:
                raise ConfigError(f"{path}: {target} is not of the shape that is to be trained")
            stored = file.tensors[target].floats()
            if name.endswith("A_log"):
                places, stored = np.log(-places), np.log(-stored)
            shift = places.min()  # norms are stored plus one
            found = np.empty(value.numel(), np.float32)
            found[np.rint(places - shift).astype(np.intp).ravel()] = (stored - shift).ravel()
            value.copy_(torch.from_numpy(found).view_as(value))


def _described(shape: NanoShape) -> tuple[ModelConfig, CheckpointFamily, ModelSizes]:
    config = ModelConfig.of("the network", _config(shape))
    family = find_family(config)
    return config, family, read_sizes(config, family, shape.num_mtp_layers)


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
