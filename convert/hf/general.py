"""`general.*`: name, licence, base model and size label, from the model card and the folder's name.

The `gguf` package works these out as llama.cpp's converter does, with the same keys and types.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.gguf.shown import shown
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
        notes.append(f"the model card is not understood ({shown(str(error))}): left out")
        found = {"general.name": folder.resolve().name}
    keys.update({key: value for key, value in found.items() if key not in keys})
    return keys, notes


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
    if found.name is None:
        found.name = folder.name
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
