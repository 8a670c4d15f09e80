"""What all checkpoints with a vision tower share, and how their families differ: `TowerLayout`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ...checkpoint import ModelCheckpoint
from ..model_config import ModelConfig

# A row for each `model_type` of config.json.
_LAYOUTS: Final = {
    "qwen2_vl": "QWEN2_VL",
    "qwen2_5_vl": "QWEN25_VL",
    "qwen3_vl": "QWEN3_VL",
    "qwen3_vl_moe": "QWEN3_VL",
    "qwen3_5": "QWEN3_VL",
    "qwen3_5_moe": "QWEN3_VL",
}


class TowerSource(Struct, frozen=True):
    vision: ModelConfig  # `vision_config`
    processor: Mapping[str, Any]  # how images are prepared


class TowerLayout(Struct, frozen=True):
    words: str  # what it is called in messages
    projector: str  # `clip.projector_type`
    width: str  # of the tower, under its name in `vision_config`
    out: str  # of rows
    activation: str  # the one that the file stands for
    keys: Callable[[TowerSource], dict[str, Any]]  # without `clip.`
    # Stems of the file by those of the checkpoint, outside of blocks; {} stands for a number.
    stems: Mapping[str, str]
    in_block: Mapping[str, str]
    splits_qkv: bool
    deepstack_layers: Callable[[TowerSource], list[int]] = lambda _source: []


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
    found: TowerLayout = getattr(import_module(".qwen_towers", __package__), _LAYOUTS[kind])
    return found
