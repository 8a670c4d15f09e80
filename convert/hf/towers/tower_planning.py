"""A tower: from the tensors of a checkpoint to those of an mmproj file."""

from __future__ import annotations

import math
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
from ....core.vision.tower_sizes import ARCHITECTURE, TowerSizes, projector_type
from ...checkpoint import ModelCheckpoint, StoredTensor
from ...quantize.recipes import RECIPES
from ..conversion import Conversion, Options
from ..matrix_rows import Change, MatrixRows, Order, OutputTensor, StoredMatrix
from ..metadata_keys import general_keys
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..output_types import as_floats, choose_type
from ..stored_names import FLOATS
from .tower_layout import TowerLayout, TowerSource, find_tower_layout

_KINDS: Final = ("f32", "f16", "bf16", "q8_0")
_PROCESSORS: Final = ("processor_config.json", "preprocessor_config.json")
_NUMBERED: Final = re.compile(r"(deepstack_merger_list)\.(\d+)\.(.+)")


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


class TowerTensors(Struct):
    """Filled tensor by tensor."""

    label: str
    layout: TowerLayout
    source: TowerSource
    planned: dict[str, OutputTensor] = field(default_factory=dict)

    def add(self, name: str, tensor: StoredTensor) -> None:
        """`name`: with what the layout has in place of its beginning."""
        if tensor.dtype not in FLOATS:
            raise self.error(tensor, f"is {tensor.dtype}: convert the original checkpoint instead")
        if self.layout.change(self, name, tensor):
            return
        stem, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            raise self.error(tensor, "has no place in an mmproj file")
        target = self.block_target(stem, tensor)
        if target is None:
            self.put(f"{self._stem(stem, tensor)}.{kind}", tensor)
        elif target.endswith("attn_qkv") and self.layout.splits_qkv:
            self._put_apart(target.removesuffix("qkv"), kind, tensor)
        else:
            self.put(f"{target}.{kind}", tensor)

    def block_target(self, stem: str, tensor: StoredTensor) -> str | None:
        """What a stem within a block becomes; None: it is in no block."""
        if not stem.startswith(f"{self.layout.block}."):
            return None
        number, _, name = stem.removeprefix(f"{self.layout.block}.").partition(".")
        target = self.layout.in_block.get(name)
        n_blocks = self.source.vision.size(self.layout.depth)
        if target is None or not number.isdecimal() or int(number) >= n_blocks:
            raise self.error(tensor, "has no place in an mmproj file")
        return f"v.blk.{int(number)}.{target}"

    def _stem(self, stem: str, tensor: StoredTensor) -> str:
        number = ""
        if found := _NUMBERED.fullmatch(stem):
            layers, place = self.layout.deepstack_layers(self.source), int(found[2])
            if place >= len(layers):
                raise self.error(tensor, "is of a layer that deepstack_visual_indexes has not")
            stem, number = f"{found[1]}.{{}}.{found[3]}", str(layers[place])
        target = self.layout.stems.get(stem)
        if target is None:
            raise self.error(tensor, "has no place in an mmproj file")
        return target.format(number)

    def _put_apart(self, stem: str, kind: str, tensor: StoredTensor) -> None:
        n_rows = tensor.shape[0] if tensor.shape else 0
        if not n_rows or n_rows % 3:
            raise self.error(tensor, f"has shape {tensor.shape}, which is not three of a kind")
        for i, letter in enumerate("qkv"):
            rows = range(i * n_rows // 3, (i + 1) * n_rows // 3)
            self.put(f"{stem}{letter}.{kind}", tensor, rows)

    def put(
        self, name: str, tensor: StoredTensor, rows: range | Order | None = None,
        change: Change = Change.NONE,
    ) -> None:  # fmt: skip
        """Some rows of a stored tensor, or all as they are; a number alone is a list of one."""
        tensor = tensor if tensor.shape else replace(tensor, shape=(1,))
        matrix = StoredMatrix(tensor)
        part = MatrixRows.all(matrix) if rows is None else MatrixRows(matrix, rows)
        shape = tensor.shape if rows is None else (len(part), *tensor.shape[1:])
        self.take(OutputTensor(name, shape, (part,), change))

    def put_flat(self, name: str, tensor: StoredTensor, n_axes: int) -> None:
        """Without the axes of one before the last `n_axes`."""
        shape = tensor.shape[-n_axes:]
        if math.prod(shape) != math.prod(tensor.shape):
            raise self.error(tensor, f"has shape {tensor.shape}, expected {n_axes} axes")
        self.put(name, replace(tensor, shape=shape))

    def take(self, planned: OutputTensor) -> None:
        if planned.name in self.planned:
            raise ModelError(f"{self.label}: {planned.name} would come from two tensors")
        self.planned[planned.name] = planned

    def error(self, tensor: StoredTensor, what: str) -> ModelError:
        return ModelError(f"{self.label}: tensor {printable(tensor.name)} {what}")


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
