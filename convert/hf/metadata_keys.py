"""The metadata of the file, beside the tokenizer's: names, types and order are llama.cpp's.

`general.*` (name, licence, base model, size label) comes from the model card and the folder's name,
by way of the `gguf` package, which has the rules of llama.cpp's converter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.errors import FileFormatError
from ...core.gguf.encode import encode_entries, exact_types
from ...core.gguf.printable import printable
from ...core.gguf.types import Typed, ValueType
from .checkpoint_family import CheckpointFamily
from .matrix_rows import OutputTensor
from .model_config import ModelConfig
from .model_sizes import ModelSizes
from .rope_setting import RopeSetting


def model_keys(
    config: ModelConfig, family: CheckpointFamily, sizes: ModelSizes, rope: RopeSetting
) -> dict[str, Any]:
    """The keys of the architecture."""
    eps = config.number(
        "rms_norm_eps", config.get("rms_norm_eps", "layernorm_epsilon"), family.rms_eps
    )
    own: dict[str, Any] = {
        "block_count": sizes.n_blocks,
        "context_length": config.size("max_position_embeddings", "model_max_length"),
        "embedding_length": sizes.n_embd,
        "feed_forward_length": sizes.n_ff or None,
        "attention.head_count": sizes.n_heads,
        "attention.head_count_kv": sizes.n_kv_heads,
        **{
            f"rope.scaling.{key}": _f32(value) if isinstance(value, float) else value
            for key, value in rope.scaling.items()
        },
        "rope.dimension_sections": (
            Typed(ValueType.ARRAY, rope.sections, ValueType.I32) if rope.sections else None
        ),
        "rope.freq_base": _f32(rope.theta),
        "rope.freq_base_swa": None if rope.window_theta is None else _f32(rope.window_theta),
        "attention.layer_norm_rms_epsilon": _f32(eps),
        "expert_count": sizes.n_experts or None,
        "expert_used_count": sizes.n_experts_used or None,
    }
    if sizes.head_dim * sizes.n_heads != sizes.n_embd or config.get("head_dim") is not None:
        own |= {"attention.key_length": sizes.head_dim, "attention.value_length": sizes.head_dim}
    own |= family.keys(config, sizes, rope)
    own["nextn_predict_layers"] = sizes.n_mtp or None
    return {f"{family.architecture}.{k}": value for k, value in own.items() if value is not None}


def _f32(value: float) -> Typed:
    return Typed(ValueType.F32, value)


def general_keys(
    folder: Path, architecture: str, planned: Mapping[str, OutputTensor], sizes: ModelSizes
) -> tuple[dict[str, Any], list[str]]:
    """`general.*`, and notes."""
    keys: dict[str, Any] = {"general.architecture": architecture, "general.type": "model"}
    notes: list[str] = []
    try:
        found = _by_package(folder.resolve(), architecture, planned, sizes)
    except Exception as error:  # noqa: BLE001 - a model card can hold anything
        notes.append(f"the model card is not understood ({printable(str(error))}): left out")
        found = {"general.name": model_name(folder)}
    for key, value in found.items():
        try:
            encode_entries(exact_types({key: value}))
        except (FileFormatError, TypeError):  # for example a temperature that is a text
            where = "of the model card or generation_config.json"
            notes.append(f"{printable(key)} {where}: left out")
        else:
            keys.setdefault(key, value)
    return keys, notes


def model_name(folder: Path) -> str:
    """The folder's; in a cache of downloads, where that is a hash, the repository's."""
    path = folder.resolve()
    cache = next((up.name for up in path.parents if up.name.startswith("models--")), None)
    return path.name if cache is None else cache.split("--")[-1]


def _by_package(
    folder: Path, architecture: str, planned: Mapping[str, OutputTensor], sizes: ModelSizes
) -> dict[str, Any]:
    from gguf import GGUFWriter, Metadata, size_label

    logging.getLogger("metadata").setLevel(logging.CRITICAL)
    n_params = sum(tensor.n_elements for tensor in planned.values())
    found = Metadata.load(None, folder, None, n_params)
    if found.name is None or model_name(folder) != folder.name:
        found.name = Metadata.id_to_title(model_name(folder))
    if found.size_label is None and n_params:
        of_experts = sum(t.n_elements for name, t in planned.items() if "_exps." in name)
        each = of_experts // sizes.n_experts if sizes.n_experts else 0
        found.size_label = size_label(n_params, n_params - of_experts, each, sizes.n_experts)
    writer = GGUFWriter(None, architecture)
    found.set_gguf_meta_model(writer)
    return {key: _typed(value) for key, value in writer.kv_data[0].items()}


def _typed(value: Any) -> Typed:
    kind = ValueType(int(value.type))
    if kind is not ValueType.ARRAY:
        return Typed(kind, value.value)
    element = value.sub_type
    if element is None:
        is_text = isinstance(value.value[0], str | bytes)
        element = ValueType.STRING if is_text else ValueType.I32
    return Typed(kind, value.value, ValueType(int(element)))
