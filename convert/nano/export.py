"""A trained network as a GGUF file: names by `hf_tensors`, matrices as Q8_0, llama.cpp's keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from ...core.gguf.quants import find_format
from ...core.gguf.writer import TensorData, write_gguf
from ..checkpoint.safetensors import Floats
from ..hf_tensors import Rules, map_tensors
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


def write_model(
    path: Path, network: Network, vocabulary: NanoVocabulary, kind: str = "Q8_0"
) -> None:
    if kind not in FILE_TYPES:
        raise ConfigError(f"matrices can be {', '.join(FILE_TYPES)}, not {kind}")
    shape = network.shape
    metadata = general(shape, kind) | keys(shape) | vocabulary.metadata()
    mapped = map_tensors(_arrays(network), rules(shape))
    tensors = [tensor_data(name, array, kind) for name, array in mapped.items()]
    write_gguf(path, metadata, tensors, overwrite=True)


def _arrays(network: Network) -> Iterator[tuple[str, Floats]]:
    for name, value in network.state_dict().items():
        if name != "lm_head.weight" or not network.shape.tie_word_embeddings:
            yield name, value.detach().float().cpu().numpy()


def architecture(shape: NanoShape) -> str:
    return "qwen35" if shape.is_hybrid else "qwen3"


def rules(shape: NanoShape) -> Rules:
    heads = shape.linear_num_key_heads, shape.linear_num_value_heads, shape.linear_head_dim
    return Rules(architecture(shape), shape.num_hidden_layers, shape.head_dim, *heads)


def general(shape: NanoShape, kind: str) -> dict[str, Any]:
    return {
        "general.architecture": architecture(shape),
        "general.type": "model",
        "general.name": "nextn nano" if shape.is_hybrid else "nextn nano draft",
        "general.description": DESCRIPTION,
        "general.license": LICENSE,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": 2,
    }


def keys(shape: NanoShape) -> dict[str, Any]:
    s = shape
    own: dict[str, Any] = {
        "context_length": s.max_position_embeddings,
        "embedding_length": s.hidden_size,
        "block_count": s.num_hidden_layers + s.num_mtp_layers,
        "feed_forward_length": s.intermediate_size,
        "attention.head_count": s.num_attention_heads,
        "attention.head_count_kv": s.num_key_value_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": s.rms_norm_eps,
        "rope.freq_base": s.rope_theta,
        "rope.dimension_count": s.rotary_dim,
    }
    if s.is_hybrid:
        pairs = s.rotary_dim // 2  # over time, height, width; all the same for text
        own |= {
            "rope.dimension_sections": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0],
            "ssm.conv_kernel": s.linear_conv_kernel_dim,
            "ssm.state_size": s.linear_head_dim,
            "ssm.group_count": s.linear_num_key_heads,
            "ssm.time_step_rank": s.linear_num_value_heads,
            "ssm.inner_size": s.linear_width,
            "full_attention_interval": s.full_attention_interval,
        }
    if s.num_mtp_layers:
        own["nextn_predict_layers"] = s.num_mtp_layers
    return {f"{architecture(shape)}.{key}": value for key, value in own.items()}


def tensor_data(name: str, array: Floats, kind: str) -> TensorData:
    small = array.ndim < 2 or any(part in name for part in _KEPT)
    fmt = find_format("F32" if small else kind)
    if array.shape[-1] % fmt.block_size:
        raise ConfigError(
            f"{name}: a row of {array.shape[-1]} numbers is not whole blocks of {fmt.block_size}"
        )
    return TensorData(name, array.shape, fmt, encode(array, fmt))
