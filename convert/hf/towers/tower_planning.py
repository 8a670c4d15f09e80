"""A tower: from the tensors of a checkpoint to those of an mmproj file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from ....core.errors import ConfigError, ModelError
from ....core.gguf.metadata import Metadata
from ....core.gguf.printable import printable
from ....core.gguf.quants import BlockFormat, find_format
from ....core.gguf.reader import GgufFile
from ....core.gguf.types import Typed, ValueType
from ....core.models.model_weights import Inventory, Weights
from ....core.vision.projectors import find_projector
from ....core.vision.tower_sizes import ARCHITECTURE, TowerSizes, projector_type
from ...checkpoint import ModelCheckpoint
from ...quantize.recipes import RECIPES
from ..conversion import Conversion, Options
from ..matrix_rows import OutputTensor
from ..metadata_keys import general_keys
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..output_types import as_floats, choose_type
from .tower_layout import TowerLayout, TowerSource, TowerTensors, find_tower_layout

_KINDS: Final = ("f32", "f16", "bf16", "q8_0")
_PROCESSORS: Final = ("processor_config.json", "preprocessor_config.json")


def plan_tower(checkpoint: ModelCheckpoint, folder: Path, options: Options) -> Conversion:
    layout = find_tower_layout(checkpoint)
    source = _source_of(checkpoint, layout)
    mapping = TowerTensors(checkpoint.label, layout, source)
    for name, tensor in checkpoint.tensors.items():
        for prefix, own in layout.prefixes.items():
            if name.startswith(prefix):
                mapping.add(own + name.removeprefix(prefix), tensor)
                break
    planned = dict(sorted(mapping.planned.items(), key=lambda item: _place(item[0])))
    kind = choose_type(options.kind, planned.values())
    if kind not in _KINDS:
        raise ConfigError(f"--type {kind}: an mmproj file is one of {', '.join(_KINDS)}")
    keys = _keys(source, layout)
    _check_complete(checkpoint.label, keys, planned)
    vision = source.vision
    n_heads = vision.size(layout.heads)
    sizes = ModelSizes(
        vision.size(layout.depth), 0, vision.size(layout.width), 0, n_heads, n_heads, 0, 0
    )
    metadata, notes = general_keys(folder, ARCHITECTURE, planned, sizes)
    metadata |= {"general.type": "mmproj", **keys}
    metadata["general.file_type"] = Typed(ValueType.U32, RECIPES[kind.upper()].file_type)
    metadata["general.quantization_version"] = Typed(ValueType.U32, 2)
    formats = {name: _format(name, tensor, kind, layout) for name, tensor in planned.items()}
    return Conversion(
        checkpoint.label, ARCHITECTURE, kind, sizes, metadata, planned, formats, notes,
        tower=layout.words,
    )  # fmt: skip


def _source_of(checkpoint: ModelCheckpoint, layout: TowerLayout) -> TowerSource:
    given, label = checkpoint.config["vision_config"], checkpoint.label
    vision = ModelConfig(label, given).with_defaults(layout.defaults)
    found = vision.get("hidden_act", "hidden_activation")
    if found not in (None, layout.activation):
        raise vision.error(f"hidden_act is {printable(found)}, expected {layout.activation}")
    processor: dict[str, Any] = {}
    for name in _PROCESSORS:
        own = checkpoint.json(name) or {}
        inner = own.get("image_processor")
        own = {**own, **inner} if isinstance(inner, Mapping) else own
        processor = own | processor  # what comes first wins
    whole = ModelConfig.of(label, checkpoint.config)
    return TowerSource(checkpoint, whole, vision, processor)


def _keys(source: TowerSource, layout: TowerLayout) -> dict[str, Any]:
    vision, own = source.vision, layout.keys(source)
    values = {
        "has_vision_encoder": True,
        "projector_type": layout.projector,
        "vision.embedding_length": vision.size(layout.width),
        "vision.block_count": vision.size(layout.depth),
        "vision.attention.head_count": vision.size(layout.heads),
        "vision.image_mean": _of_channels(source, "image_mean"),
        "vision.image_std": _of_channels(source, "image_std"),
    }
    if "vision.patch_size" not in own:
        values["vision.patch_size"] = vision.size("patch_size")
    if "vision.projector_type" in own:
        del values["projector_type"]
    return {f"{ARCHITECTURE}.{name}": value for name, value in (values | own).items()}


def _of_channels(source: TowerSource, name: str) -> Typed:
    value = source.processor.get(name)
    if not isinstance(value, list) or len(value) != 3:
        raise ModelError(
            f"{source.vision.label}: {_PROCESSORS[1]} has no {name} of three numbers: without it "
            "images would be seen in wrong colours"
        )
    for each in value:
        if type(each) not in (int, float) or not math.isfinite(each):
            raise source.vision.error(f"{name} is {printable(value)}, not three numbers")
    return Typed(ValueType.ARRAY, [float(each) for each in value], ValueType.F32)


def _check_complete(label: str, keys: dict[str, Any], planned: dict[str, OutputTensor]) -> None:
    """By the survey that a runtime makes of such files."""
    metadata = Metadata.of({"general.architecture": ARCHITECTURE, **keys}, label)
    file = _with_numbers(as_floats(planned, metadata, label))
    kind = find_projector(projector_type(file), label)
    weights = Weights(file, Inventory())
    kind(TowerSizes.from_gguf(file, kind.merge_key), weights, None)
    found = weights.findings
    if found.missing:
        raise ModelError(f"{label}: nothing in the checkpoint makes {found.missing[0]}")
    for text in found.misshapen:
        name = text.split(" ")[0]
        raise ModelError(f"{label}: {planned[name].source} does not fit config.json: {text}")
    weights.check()


def _with_numbers(file: GgufFile) -> GgufFile:
    """Some are looked at; memory is taken for those alone."""
    tensors = {
        name: replace(tensor, data=np.zeros(tensor.n_bytes, np.uint8))
        if tensor.data.strides == (0,)
        else tensor
        for name, tensor in file.tensors.items()
    }
    return replace(file, tensors=tensors)


def _format(name: str, tensor: OutputTensor, kind: str, layout: TowerLayout) -> BlockFormat:
    """Matrices are of the type; tables, norms and biases F32; kernels of patches F16 or F32."""
    if len(tensor.shape) < 2 or "position_embd" in name or name in layout.exact:
        return find_format("F32")
    if len(tensor.shape) > 2:
        return find_format("F16" if kind == "f16" else "F32")
    if name in layout.halves:
        return find_format("F32" if kind == "f32" else "F16")
    wanted = find_format(kind.upper())
    return wanted if tensor.shape[-1] % wanted.block_size == 0 else find_format("F16")


def _place(name: str) -> tuple[int, int, str]:
    found = re.match(r"v\.blk\.(\d+)\.", name)
    if found:
        return 1, int(found[1]), name
    return (2 if name.startswith(("mm.", "v.post", "v.deep")) else 0), 0, name
