"""`config.json` as it is written, and the family of models that it belongs to.

Sizes are looked up under all their names. `transformers` is not used: its classes fill in defaults
and drop keys that only the hub has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ...core.errors import ModelError
from ...core.gguf.printable import printable

MAX_SIZE: Final = 1 << 28
_NESTED: Final = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    label: str  # of the checkpoint
    values: Mapping[str, Any]  # of the language model, over those of the whole model

    @classmethod
    def of(cls, label: str, raw: Mapping[str, Any]) -> ModelConfig:
        nested = (raw[key] for key in _NESTED if isinstance(raw.get(key), Mapping))
        inner: Mapping[str, Any] = next(nested, {})
        # Whether the head is tied is a property of the whole model.
        tied = {k: raw[k] for k in ("tie_word_embeddings",) if k in raw}
        return cls(label, {**raw, **inner, **tied})

    @property
    def model_type(self) -> str:
        return str(self.values.get("model_type", ""))

    def get(self, *names: str) -> Any:
        """The first that is there and not null."""
        return next((v for name in names if (v := self.values.get(name)) is not None), None)

    def size(self, *names: str, default: int | None = None) -> int:
        value = self.get(*names)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value <= MAX_SIZE:
            found = "missing" if value is None else f"{printable(value)}, not a size"
            raise self.error(f"{names[0]} is {found}")
        return value

    def count(self, *names: str) -> int:
        """0 where the configuration has none."""
        return 0 if self.get(*names) in (None, 0) else self.size(*names)

    def number(self, name: str, value: Any, default: float | None = None) -> float:
        """`value` as a positive float; `name` is for the error."""
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            found = "missing" if value is None else f"{printable(value)}, not a positive number"
            raise self.error(f"{name} is {found}")
        return float(value)

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.label}: config.json: {what}")


@dataclass(frozen=True, slots=True)
class CheckpointFamily:
    """Properties that every model of a family shares, and defaults of its configuration."""

    architecture: str  # GGUF's word
    rope_theta: float = 10000.0  # the default, as are the next two
    rms_eps: float = 1e-6
    head_dim: int = 0  # 0: width divided by heads
    is_hybrid: bool = False
    is_tiled: bool = False  # value heads of the delta rule
    qkv_bias: bool = False


LLAMA: Final = CheckpointFamily("llama")
QWEN35: Final = CheckpointFamily("qwen35", head_dim=256, is_hybrid=True, is_tiled=True)
QWEN35MOE: Final = CheckpointFamily("qwen35moe", head_dim=256, is_hybrid=True, is_tiled=True)

FAMILIES: Final = MappingProxyType(
    {
        "llama": LLAMA,
        "mistral": LLAMA,
        "mixtral": CheckpointFamily("llama", rope_theta=1e6, rms_eps=1e-5),
        "qwen2": CheckpointFamily("qwen2", qkv_bias=True),
        "qwen3": CheckpointFamily("qwen3", head_dim=128),
        "qwen3_moe": CheckpointFamily("qwen3moe"),
        "qwen3_next": CheckpointFamily("qwen3next", head_dim=256, is_hybrid=True),
        "qwen3_5": QWEN35,
        "qwen3_5_text": QWEN35,
        "qwen3_5_moe": QWEN35MOE,
        "qwen3_5_moe_text": QWEN35MOE,
    }
)


def find_family(config: ModelConfig) -> CheckpointFamily:
    """The family of the language model's `model_type`, which decides in `transformers` as well."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        classes = config.values.get("architectures")
        name = config.model_type or (
            str(classes[0]) if isinstance(classes, list) and classes else ""
        )
        raise ModelError(
            f"{config.label}: model type {printable(name)} cannot be converted (known: "
            f"{', '.join(FAMILIES)})"
        )
    activation = config.get("hidden_act", "hidden_activation")
    if activation not in (None, "silu", "swish"):
        raise config.error(f"hidden_act is {printable(activation)}; GGUF's graph has silu alone")
    return family
