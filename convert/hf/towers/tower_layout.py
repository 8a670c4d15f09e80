"""What all checkpoints with a vision tower share, and how their families differ: `TowerLayout`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ...checkpoint import ModelCheckpoint
from ..model_config import ModelConfig

if TYPE_CHECKING:
    from ...checkpoint import StoredTensor
    from .tower_planning import TowerTensors

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
