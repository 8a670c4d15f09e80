"""`general.*`: name, licence, base model and size label, from the model card and the folder's name.

The `gguf` package works these out as llama.cpp's converter does, with the same keys and types.
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
from .matrix import Planned
from .sizes import Sizes


def general_keys(
    folder: Path, architecture: str, planned: Mapping[str, Planned], sizes: Sizes
) -> tuple[dict[str, Any], list[str]]:
    """And notes."""
    n_params = sum(tensor.n_elements for tensor in planned.values())
    keys: dict[str, Any] = {"general.architecture": architecture, "general.type": "model"}
    notes: list[str] = []
    try:
        found = _by_package(folder.resolve(), architecture, planned, sizes, n_params)
    except Exception as error:  # noqa: BLE001 - a model card can hold anything
        notes.append(f"the model card is not understood ({printable(str(error))}): left out")
        found = {"general.name": model_name(folder)}
    for key, value in found.items():
        try:
            encode_entries(exact_types({key: value}))
        except (FileFormatError, TypeError):  # a temperature that is a text, say
            notes.append(f"{printable(key)} of the model card or generation_config.json: left out")
        else:
            keys.setdefault(key, value)
    return keys, notes


def model_name(folder: Path) -> str:
    """The folder's; in a cache of downloads, where that is a hash, the repository's."""
    path = folder.resolve()
    cache = next((up.name for up in path.parents if up.name.startswith("models--")), None)
    return path.name if cache is None else cache.split("--")[-1]


def _by_package(
    folder: Path,
    architecture: str,
    planned: Mapping[str, Planned],
    sizes: Sizes,
    n_params: int,
) -> dict[str, Any]:
    from gguf import GGUFWriter, Metadata, size_label

    logging.getLogger("metadata").setLevel(logging.CRITICAL)
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
        first = value.value[0]
        element = ValueType.STRING if isinstance(first, str | bytes) else ValueType.I32
    return Typed(kind, value.value, ValueType(int(element)))
