"""A trained drafter as a GGUF file without embedding and head, which are the target's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...core.errors import ConfigError
from ...core.gguf.quants import find_format
from ...core.gguf.writer import TensorData, write_gguf
from ..quantize.native_quantizer import encode
from .dflash_network import DFlashNetwork
from .eagle3_network import Eagle3Network
from .training_target import TrainingTarget

DraftingNetwork = Eagle3Network | DFlashNetwork
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_1": 3, "Q8_0": 7}  # general.file_type
MASK = "tokenizer.ggml.mask_token_id"


def write_drafter(
    path: Path,
    network: DraftingNetwork,
    target: TrainingTarget,
    kind: str = "Q8_0",
    more: Mapping[str, Any] | None = None,
) -> None:
    """`kind`: of the matrices. `more`: further keys, or others in place of these."""
    shape, name = network.shape, network.architecture
    keys = {
        **shape.size_keys,
        "context_length": shape.max_position_embeddings,
        "attention.layer_norm_rms_epsilon": shape.rms_norm_eps,
        "rope.freq_base": shape.rope_theta,
        "target_layers": list(network.layers),
        "target_hidden_size": target.width,
        "vocab_size": target.n_vocab,
        **network.keys(),
    }
    metadata = {
        "general.architecture": name,
        "general.name": f"nextn nano {name}",
        "general.license": target.license,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": 2,
        **{f"{name}.{key}": value for key, value in keys.items()},
        **target.vocabulary,
        **(more or {}),
    }
    if isinstance(network, DFlashNetwork):
        metadata[MASK] = network.mask_token
    tensors = [encoded(name, value, kind) for name, value in network.tensors(target).items()]
    write_gguf(path, metadata, tensors, overwrite=True)


def encoded(name: str, value: Tensor, kind: str) -> TensorData:
    """Matrices as `kind`, norms as F32, tokens as I64."""
    if not value.is_floating_point():
        whole = value.numpy().astype(np.int64)
        return TensorData(name, whole.shape, find_format("I64"), whole)
    array = np.ascontiguousarray(value.detach().float().cpu().numpy())
    fmt = find_format("F32" if array.ndim < 2 or "norm" in name else kind)
    if array.shape[-1] % fmt.block_size:
        raise ConfigError(
            f"{name}: a row of {array.shape[-1]} numbers is not whole blocks of {fmt.block_size}"
        )
    return TensorData(name, array.shape, fmt, encode(array, fmt))
