"""What all checkpoints with a vision tower share, and how their families differ: `TowerLayout`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ...checkpoint import ModelCheckpoint, StoredTensor
from ..matrix_rows import Change, MatrixRows, Order, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..stored_names import FLOATS

# A row for each `model_type` of config.json.
_LAYOUTS: Final = {
    "qwen2_vl": "qwen_towers:QWEN2_VL",
    "qwen2_5_vl": "qwen_towers:QWEN25_VL",
    "qwen3_vl": "qwen_towers:QWEN3_VL",
    "qwen3_vl_moe": "qwen_towers:QWEN3_VL",
    "qwen3_5": "qwen_towers:QWEN3_VL",
    "qwen3_5_moe": "qwen_towers:QWEN3_VL",
    "gemma3": "siglip_towers:GEMMA3",
    "gemma4": "gemma4_tower:GEMMA4",
    "idefics3": "siglip_towers:IDEFICS3",
    "smolvlm": "siglip_towers:IDEFICS3",
    "internvl": "internvl_tower:INTERNVL",
    "llava": "pixtral_tower:PIXTRAL",
    "mistral3": "pixtral_tower:PIXTRAL",
}
_TOWER: Final = ("model.vision_tower.vision_model.", "model.vision_tower.",
                 "vision_tower.vision_model.", "vision_tower.")  # fmt: skip
_PROJECTOR: Final = ("model.multi_modal_projector.", "multi_modal_projector.")
# Beginnings of names in checkpoints, and what a layout has in their place.
TOWER_PREFIXES: Final = dict.fromkeys(_TOWER, "") | dict.fromkeys(_PROJECTOR, "projector.")


_NUMBERED: Final = re.compile(r"(deepstack_merger_list)\.(\d+)\.(.+)")


class TowerSource(Struct, frozen=True):
    checkpoint: ModelCheckpoint
    whole: ModelConfig  # config.json, with what it says of the text model
    vision: ModelConfig  # `vision_config`
    processor: Mapping[str, Any]  # how images are prepared


class TowerLayout(Struct, frozen=True):
    words: str  # what it is called in messages
    projector: str  # `clip.projector_type`
    activation: str  # the one that the file stands for
    keys: Callable[[TowerSource], dict[str, Any]]  # without `clip.`
    # Stems of the file by those of the checkpoint, outside of blocks; {} stands for a number.
    stems: Mapping[str, str]
    in_block: Mapping[str, str]
    prefixes: Mapping[str, str] = field(default_factory=lambda: TOWER_PREFIXES)
    block: str = "encoder.layers"  # what is before the number of a block
    # Names in `vision_config`, and what is meant where it has none.
    width: str = "hidden_size"
    depth: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    defaults: Mapping[str, Any] = {}
    splits_qkv: bool = False
    deepstack_layers: Callable[[TowerSource], list[int]] = lambda _source: []
    # Takes a tensor that is stored in another way than the file has it; False: it is no such one.
    change: Callable[[TowerTensors, str, StoredTensor], bool] = lambda *_: False
    exact: tuple[str, ...] = ()  # tensors that are F32 whatever the type
    halves: tuple[str, ...] = ()  # those that are F16, or F32


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


def find_tower_layout(checkpoint: ModelCheckpoint) -> TowerLayout:
    """ModelError for a model without a vision tower, or with one that cannot be converted."""
    config = checkpoint.config
    kind = str(config.get("model_type", ""))
    if not isinstance(config.get("vision_config"), Mapping):
        raise ModelError(
            f"{checkpoint.label}: config.json has no vision_config: there is no vision tower that "
            "--mmproj could write"
        )
    if kind not in _LAYOUTS:
        raise ModelError(
            f"{checkpoint.label}: the vision tower of a {printable(kind)} cannot be converted "
            f"(those that can: {', '.join(_LAYOUTS)})"
        )
    module, _, name = _LAYOUTS[kind].partition(":")
    found: TowerLayout = getattr(import_module(f".{module}", __package__), name)
    return found
