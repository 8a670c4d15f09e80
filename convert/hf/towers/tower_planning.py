"""A tower: from the tensors of a checkpoint to those of an mmproj file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from ....core.errors import ConfigError, ModelError
from ....core.gguf.metadata import Metadata
from ....core.gguf.printable import printable
from ....core.gguf.quants import BlockFormat, find_format
from ....core.gguf.reader import GgufFile
from ....core.gguf.types import Typed, ValueType
from ....core.models.model_weights import Inventory, Weights
from ....core.vision.projectors import find_projector
from ....core.vision.tower_sizes import ARCHITECTURE, TowerSizes
from ...checkpoint import ModelCheckpoint, StoredTensor
from ...quantize.recipes import RECIPES
from ..conversion import Conversion, Options
from ..matrix_rows import MatrixRows, OutputTensor, StoredMatrix
from ..metadata_keys import general_keys
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..output_types import as_floats, choose_type
from ..stored_names import FLOATS
from .tower_layout import TowerLayout, TowerSource, find_tower_layout

_PREFIXES: Final = ("model.visual.", "visual.")
_PATCHES: Final = "patch_embed.proj"
_FRAMES: Final = 2  # of a film, that one patch covers
_EPS: Final = 1e-6  # of all norms, in the authors' code
_KINDS: Final = ("f32", "f16", "bf16", "q8_0")
_PROCESSORS: Final = ("processor_config.json", "preprocessor_config.json")
_NUMBERED: Final = re.compile(r"(deepstack_merger_list)\.(\d+)\.(.+)")
_IN_BLOCK: Final = re.compile(r"blocks\.(\d+)\.(.+)")


def plan_tower(checkpoint: ModelCheckpoint, folder: Path, options: Options) -> Conversion:
    layout = find_tower_layout(checkpoint)
    source = _source_of(checkpoint)
    _check_vision(source.vision, layout)
    mapping = TowerTensors(checkpoint.label, layout, source)
    for name, tensor in checkpoint.tensors.items():
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                mapping.add(name.removeprefix(prefix), tensor)
                break
    planned = dict(sorted(mapping.planned.items(), key=lambda item: _place(item[0])))
    kind = choose_type(options.kind, planned.values())
    if kind not in _KINDS:
        raise ConfigError(f"--type {kind}: an mmproj file is one of {', '.join(_KINDS)}")
    keys = _keys(source, layout)
    _check_complete(checkpoint.label, keys, planned)
    vision = source.vision
    sizes = ModelSizes(
        vision.size("depth"), 0, vision.size(layout.width), 0, vision.size("num_heads"),
        vision.size("num_heads"), 0, 0,
    )  # fmt: skip
    metadata, notes = general_keys(folder, ARCHITECTURE, planned, sizes)
    metadata |= {"general.type": "mmproj", **keys}
    metadata["general.file_type"] = Typed(ValueType.U32, RECIPES[kind.upper()].file_type)
    metadata["general.quantization_version"] = Typed(ValueType.U32, 2)
    formats = {name: _format(name, tensor, kind) for name, tensor in planned.items()}
    return Conversion(
        checkpoint.label, ARCHITECTURE, kind, sizes, metadata, planned, formats, notes,
        tower=layout.words,
    )  # fmt: skip


class TowerTensors(Struct):
    """Filled tensor by tensor."""

    label: str
    layout: TowerLayout
    source: TowerSource
    planned: dict[str, OutputTensor] = field(default_factory=dict)

    def add(self, name: str, tensor: StoredTensor) -> None:
        """`name`: without what all of the tower's tensors begin with."""
        if tensor.dtype not in FLOATS:
            raise self._error(tensor, f"is {tensor.dtype}: convert the original checkpoint instead")
        stem, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            raise self._error(tensor, "has no place in an mmproj file")
        if name == f"{_PATCHES}.weight":
            self._add_patches(tensor)
        elif stem == _PATCHES:
            self._put(f"v.patch_embd.{kind}", tensor)
        elif found := _IN_BLOCK.fullmatch(stem):
            self._add_in_block(int(found[1]), found[2], kind, tensor)
        else:
            self._put(f"{self._stem(stem, tensor)}.{kind}", tensor)

    def _stem(self, stem: str, tensor: StoredTensor) -> str:
        number = ""
        if found := _NUMBERED.fullmatch(stem):
            layers, place = self.layout.deepstack_layers(self.source), int(found[2])
            if place >= len(layers):
                raise self._error(tensor, "is of a layer that deepstack_visual_indexes has not")
            stem, number = f"{found[1]}.{{}}.{found[3]}", str(layers[place])
        target = self.layout.stems.get(stem)
        if target is None:
            raise self._error(tensor, "has no place in an mmproj file")
        return target.format(number)

    def _add_in_block(self, block: int, name: str, kind: str, tensor: StoredTensor) -> None:
        target = self.layout.in_block.get(name)
        if target is None or block >= self.source.vision.size("depth"):
            raise self._error(tensor, "has no place in an mmproj file")
        if target != "attn_qkv" or not self.layout.splits_qkv:
            self._put(f"v.blk.{block}.{target}.{kind}", tensor)
            return
        n_rows = tensor.shape[0] if tensor.shape else 0
        if not n_rows or n_rows % 3:
            raise self._error(tensor, f"has shape {tensor.shape}, which is not three of a kind")
        for i, letter in enumerate("qkv"):
            rows = range(i * n_rows // 3, (i + 1) * n_rows // 3)
            self._put(f"v.blk.{block}.attn_{letter}.{kind}", tensor, rows)

    def _add_patches(self, tensor: StoredTensor) -> None:
        """The kernels of both frames apart."""
        if len(tensor.shape) != 5 or tensor.shape[2] != _FRAMES:
            raise self._error(tensor, f"has shape {tensor.shape}, which no kernel of patches has")
        n, channels, _, height, width = tensor.shape
        rows = StoredMatrix(replace(tensor, shape=(n * channels * _FRAMES, height * width)))
        for frame, name in enumerate(("v.patch_embd.weight", "v.patch_embd.weight.1")):
            part = MatrixRows(rows, np.arange(frame, rows.n_rows, _FRAMES))
            self._take(OutputTensor(name, (n, channels, height, width), (part,)))

    def _put(self, name: str, tensor: StoredTensor, rows: range | None = None) -> None:
        matrix = StoredMatrix(tensor)
        part = MatrixRows.all(matrix) if rows is None else MatrixRows(matrix, rows)
        self._take(OutputTensor(name, (len(part), *tensor.shape[1:]), (part,)))

    def _take(self, planned: OutputTensor) -> None:
        if planned.name in self.planned:
            raise ModelError(f"{self.label}: {planned.name} would come from two tensors")
        self.planned[planned.name] = planned

    def _error(self, tensor: StoredTensor, what: str) -> ModelError:
        return ModelError(f"{self.label}: tensor {printable(tensor.name)} {what}")


def _source_of(checkpoint: ModelCheckpoint) -> TowerSource:
    vision = ModelConfig(checkpoint.label, checkpoint.config["vision_config"])
    processor: dict[str, Any] = {}
    for name in _PROCESSORS:
        found = checkpoint.json(name) or {}
        inner = found.get("image_processor")
        found = {**found, **inner} if isinstance(inner, Mapping) else found
        processor = found | processor  # what comes first wins
    return TowerSource(vision, processor)


def _check_vision(vision: ModelConfig, layout: TowerLayout) -> None:
    if vision.size("temporal_patch_size", default=_FRAMES) != _FRAMES:
        raise vision.error("temporal_patch_size is not 2, and mmproj files have two kernels")
    found = vision.get("hidden_act")
    if found not in (None, layout.activation):
        raise vision.error(f"hidden_act is {printable(found)}, expected {layout.activation}")


def _keys(source: TowerSource, layout: TowerLayout) -> dict[str, Any]:
    vision = source.vision
    values = {
        "has_vision_encoder": True,
        "projector_type": layout.projector,
        "vision.embedding_length": vision.size(layout.width),
        "vision.block_count": vision.size("depth"),
        "vision.attention.head_count": vision.size("num_heads"),
        "vision.attention.layer_norm_epsilon": Typed(ValueType.F32, _EPS),
        "vision.projection_dim": vision.size(layout.out),
        "vision.patch_size": vision.size("patch_size"),
        "vision.spatial_merge_size": vision.size("spatial_merge_size", default=2),
        "vision.image_mean": _of_channels(source, "image_mean"),
        "vision.image_std": _of_channels(source, "image_std"),
    } | layout.keys(source)
    return {f"{ARCHITECTURE}.{name}": value for name, value in values.items()}


def _of_channels(source: TowerSource, name: str) -> Typed:
    value = source.processor.get(name)
    if not isinstance(value, list) or len(value) != 3:
        raise ModelError(
            f"{source.vision.label}: {_PROCESSORS[1]} has no {name} of three numbers: without it "
            "images would be seen in wrong colours"
        )
    numbers = [source.vision.number(name, each) for each in value]
    return Typed(ValueType.ARRAY, numbers, ValueType.F32)


def _check_complete(label: str, keys: dict[str, Any], planned: dict[str, OutputTensor]) -> None:
    """By the survey that a runtime makes of such files."""
    metadata = Metadata.of({"general.architecture": ARCHITECTURE, **keys}, label)
    file = _with_table(as_floats(planned, metadata, label))
    kind = find_projector(str(keys[f"{ARCHITECTURE}.projector_type"]), label)
    weights = Weights(file, Inventory())
    kind(TowerSizes.from_gguf(file, kind.merge_key), weights, None)
    found = weights.findings
    if found.missing:
        raise ModelError(f"{label}: nothing in the checkpoint makes {found.missing[0]}")
    for text in found.misshapen:
        name = text.split(" ")[0]
        raise ModelError(f"{label}: {planned[name].source} does not fit config.json: {text}")
    weights.check()


def _with_table(file: GgufFile) -> GgufFile:
    """The table of positions is looked at, as numbers."""
    tensors = dict(file.tensors)
    for name, tensor in file.tensors.items():
        if name.startswith("v.position_embd."):
            tensors[name] = replace(tensor, data=np.zeros(tensor.n_bytes, np.uint8))
    return replace(file, tensors=tensors)


def _format(name: str, tensor: OutputTensor, kind: str) -> BlockFormat:
    """Matrices are of the type; tables, norms and biases F32; kernels of patches F16 or F32."""
    if len(tensor.shape) < 2 or "position_embd" in name:
        return find_format("F32")
    if len(tensor.shape) > 2:
        return find_format("F16" if kind == "f16" else "F32")
    wanted = find_format(kind.upper())
    return wanted if tensor.shape[-1] % wanted.block_size == 0 else find_format("F16")


def _place(name: str) -> tuple[int, int, str]:
    found = re.match(r"v\.blk\.(\d+)\.", name)
    if found:
        return 1, int(found[1]), name
    return (2 if name.startswith(("mm.", "v.post", "v.deep")) else 0), 0, name
