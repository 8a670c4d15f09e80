"""`config.json` as it is written.

Sizes are looked up under all their names. `transformers` is not used: its classes fill in defaults
and drop keys that only the hub has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import ModelError
from ...core.gguf.printable import printable

MAX_SIZE: Final = 1 << 28
_NESTED: Final = ("text_config", "llm_config", "language_config")


class ModelConfig(Struct, frozen=True):
    label: str  # of the checkpoint
    values: Mapping[str, Any]  # of the language model, over those of the whole model

    @classmethod
    def of(cls, label: str, raw: Mapping[str, Any]) -> ModelConfig:
        nested = (raw[key] for key in _NESTED if isinstance(raw.get(key), Mapping))
        inner: Mapping[str, Any] = next(nested, {})
        # Whether the head is tied is a property of the whole model.
        tied = {k: raw[k] for k in ("tie_word_embeddings",) if k in raw}
        return cls(label, {**raw, **inner, **tied})

    def with_defaults(self, defaults: Mapping[str, Any]) -> ModelConfig:
        """`defaults` stand where the configuration has nothing."""
        return replace(self, values={**defaults, **self.values})

    def with_one_for_all(self, *names: str) -> ModelConfig:
        """Where these are a list of the same for each layer, that alone."""
        alike = {
            name: found[0]
            for name in names
            if isinstance(found := self.values.get(name), list)
            and found
            and all(value == found[0] for value in found)
        }
        return replace(self, values={**self.values, **alike})

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
