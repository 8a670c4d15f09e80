"""What is known of the checkpoints of one kind of drafter, and their configuration in one spelling.

Settings of a drafter may lie in a part of their own (`dflash_config`), and those of its layers in
another (`transformer_layer_config`, of the library `speculators`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ....core.gguf.types import Typed, ValueType
from ..checkpoint_family import CheckpointFamily, Keys
from ..model_config import ModelConfig

if TYPE_CHECKING:
    from ..matrix_rows import OutputTensor, StoredMatrix
    from ..model_sizes import ModelSizes
    from .draft_target import DraftTarget

_NESTED: Final = ("transformer_layer_config", "dflash_config")  # later ones win
_OUTER: Final = ("architectures", "tie_word_embeddings")  # of the whole drafter
Matrices = dict[str, "StoredMatrix"]  # by the one spelling of names


class DraftSource(Struct):
    """A drafter's checkpoint on its way: what the functions of a layout look at."""

    raw: Mapping[str, Any]  # config.json
    config: ModelConfig
    target: DraftTarget | None
    notes: list[str]


Chooser = Callable[[DraftSource, Matrices], Matrices]
DraftKeys = Callable[[DraftSource, "ModelSizes", "Mapping[str, OutputTensor]"], Keys]


class DraftLayout(Struct, frozen=True):
    """`family` has names, orders and rope; the functions here what takes more than one tensor."""

    words: str  # "an EAGLE3 drafter"
    family: CheckpointFamily
    choose: Chooser  # which matrices are written, by their names in layers
    keys: DraftKeys


def draft_config(label: str, raw: Mapping[str, Any]) -> ModelConfig:
    values = dict(ModelConfig.of(label, raw).values)
    for key in _NESTED:
        inner = raw.get(key)
        if isinstance(inner, Mapping):
            values |= {name: value for name, value in inner.items() if value is not None}
        elif inner is not None:
            raise ModelError(f"{label}: config.json: {key} is {printable(inner)}, not an object")
    return ModelConfig(label, values | {name: raw[name] for name in _OUTER if name in raw})


def layer_ids(config: ModelConfig, name: str, value: Any, *, offset: int) -> list[int]:
    """Layers whose inputs are read, of a list that counts otherwise by `offset`: layer i's output
    is the input of layer i + 1."""
    if (
        not isinstance(value, list)
        or not value
        or any(type(n) is not int or not 0 <= n + offset < 1 << 20 for n in value)
    ):
        raise config.error(f"{name} is {printable(value)}, not a list of layers of the target")
    return [n + offset for n in value]


def int32s(values: list[int]) -> Typed:
    return Typed(ValueType.ARRAY, np.array(values, np.int32), ValueType.I32)


def flag(config: ModelConfig, name: str, default: bool | None = None) -> bool | None:
    found = config.get(name)
    if found is None:
        return default
    if not isinstance(found, bool):
        raise config.error(f"{name} is {printable(found)}, not true or false")
    return found


def optional_float(config: ModelConfig, name: str) -> Typed | None:
    """None for 0 as well, which stands for none."""
    found = config.get(name)
    return None if found in (None, 0) else Typed(ValueType.F32, config.number(name, found))
