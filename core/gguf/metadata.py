"""The key-value part of a GGUF file, with getters that check type and range.

A key that begins with `general.`, `tokenizer.` or `split.` is absolute; any other key given to
a getter is relative to the architecture: `meta.int("block_count")` reads `qwen3.block_count`.
Text that is not valid UTF-8 is shown with U+FFFD; `raw` gives its bytes, `typed` keeps them.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from .metadata_values import Strings, normalize
from .printable import printable
from .types import FLOATS, INTEGERS, Typed, Value, ValueType, Writable, infer_type

D = TypeVar("D")


class Required(Enum):
    REQUIRED = 0


REQUIRED: Final = Required.REQUIRED

_ABSOLUTE = ("general.", "tokenizer.", "split.", "adapter.")


class Metadata(Mapping[str, Value]):
    """Raw access is by full key; the getters are what a model should use."""

    def __init__(self, entries: Mapping[str, Typed], source: builtins.str = "metadata") -> None:
        self._entries = dict(entries)
        self._source = source

    @classmethod
    def of(
        cls, values: Mapping[builtins.str, Writable], source: builtins.str = "metadata"
    ) -> Metadata:
        """From plain Python values, types inferred as the writer does."""
        typed = {key: normalize(infer_type(key, value)) for key, value in values.items()}
        return cls(typed, source)

    def __getitem__(self, key: builtins.str) -> Value:
        value = self._entries[key].value
        if isinstance(value, Strings):
            return value.texts
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return cast(Value, value)

    def __contains__(self, key: object) -> builtins.bool:
        return key in self._entries  # the inherited one would decode the value

    def __iter__(self) -> Iterator[builtins.str]:
        return iter(self._entries)

    def __len__(self) -> builtins.int:
        return len(self._entries)

    def entry(self, key: builtins.str) -> Typed:
        """As it was read: an array of strings is a `Strings`, whose length costs nothing."""
        return self._entries[key]

    def typed(self, key: builtins.str) -> Typed:
        """The value with its exact type and bytes, as `write_gguf` takes it. Full key."""
        entry = self._entries[key]
        if isinstance(entry.value, Strings):
            return Typed(entry.type, entry.value.exact(), entry.element)
        return entry

    def raw(self, key: builtins.str) -> bytes | list[bytes]:
        """The undecoded bytes of a string or of an array of strings. Full key."""
        value = self._entries[key].value
        if isinstance(value, Strings):
            return value.raw()
        if isinstance(value, builtins.str):
            return value.encode()
        if isinstance(value, bytes):
            return value
        raise self._wrong(key, "a string or an array of strings")

    @property
    def architecture(self) -> builtins.str:
        name = self.str("general.architecture")
        if not name or not all(c.isalnum() or c in "-_." for c in name):
            raise self._error(f"general.architecture is {printable(name)}, which is not a name")
        return name

    def full_key(self, key: builtins.str) -> builtins.str:
        return key if key.startswith(_ABSOLUTE) else f"{self.architecture}.{key}"

    def has(self, key: builtins.str) -> builtins.bool:
        """Whether a getter would find `key`; unlike `in`, takes relative keys."""
        return self.full_key(key) in self._entries

    def int(
        self,
        key: builtins.str,
        default: D | Required = REQUIRED,
        *,
        low: builtins.int = 0,
        high: builtins.int = 2**31 - 1,
    ) -> builtins.int | D:
        key = self.full_key(key)
        entry = self._find(key, default)
        if entry is None:
            return cast(D, default)
        if entry.type not in INTEGERS:
            raise self._wrong(key, "an integer")
        return self._in_range(key, cast(builtins.int, entry.value), low, high)

    def float(
        self,
        key: builtins.str,
        default: D | Required = REQUIRED,
        *,
        low: builtins.float = -math.inf,
        high: builtins.float = math.inf,
    ) -> builtins.float | D:
        """Finite, or refused."""
        key = self.full_key(key)
        entry = self._find(key, default)
        if entry is None:
            return cast(D, default)
        if entry.type not in INTEGERS | FLOATS:
            raise self._wrong(key, "a number")
        return self._finite(key, builtins.float(entry.value), low, high)

    def bool(self, key: builtins.str, default: D | Required = REQUIRED) -> builtins.bool | D:
        key = self.full_key(key)
        entry = self._find(key, default)
        if entry is None:
            return cast(D, default)
        if entry.type is not ValueType.BOOL:
            raise self._wrong(key, "a bool")
        return cast(builtins.bool, entry.value)

    def str(self, key: builtins.str, default: D | Required = REQUIRED) -> builtins.str | D:
        key = self.full_key(key)
        entry = self._find(key, default)
        if entry is None:
            return cast(D, default)
        if entry.type is not ValueType.STRING:
            raise self._wrong(key, "a string")
        return cast(builtins.str, self[key])

    def ints(
        self,
        key: builtins.str,
        default: D | Required = REQUIRED,
        *,
        length: builtins.int | None = None,
        low: builtins.int = -(2**31),
        high: builtins.int = 2**31 - 1,
    ) -> tuple[builtins.int, ...] | D:
        key = self.full_key(key)
        entry = self._find_array(key, default, INTEGERS, "integers", length)
        if entry is None:
            return cast(D, default)
        return self._all_in_range(key, entry.value, low, high)

    def floats(
        self,
        key: builtins.str,
        default: D | Required = REQUIRED,
        *,
        length: builtins.int | None = None,
        low: builtins.float = -math.inf,
        high: builtins.float = math.inf,
    ) -> tuple[builtins.float, ...] | D:
        """All finite, or refused."""
        key = self.full_key(key)
        entry = self._find_array(key, default, INTEGERS | FLOATS, "numbers", length)
        if entry is None:
            return cast(D, default)
        values = cast(NDArray[Any], entry.value).astype(np.float64)
        bad = np.flatnonzero(~((values >= low) & (values <= high) & np.isfinite(values)))
        if bad.size:
            self._finite(f"{key}[{bad[0]}]", builtins.float(values[bad[0]]), low, high)
        return tuple(values.tolist())

    def bools(
        self,
        key: builtins.str,
        default: D | Required = REQUIRED,
        *,
        length: builtins.int | None = None,
    ) -> tuple[builtins.bool, ...] | D:
        """Also from an array of integers 0 and 1, which older converters wrote for patterns."""
        key = self.full_key(key)
        kinds = INTEGERS | {ValueType.BOOL}
        entry = self._find_array(key, default, kinds, "bools", length)
        if entry is None:
            return cast(D, default)
        return tuple(map(builtins.bool, self._all_in_range(key, entry.value, 0, 1)))

    def strs(
        self,
        key: builtins.str,
        default: D | Required = REQUIRED,
        *,
        length: builtins.int | None = None,
    ) -> list[builtins.str] | D:
        """Every call returns the same list, which must not be changed."""
        key = self.full_key(key)
        entry = self._find_array(key, default, frozenset({ValueType.STRING}), "strings", length)
        if entry is None:
            return cast(D, default)
        return cast("list[str]", self[key])

    def per_layer_ints(
        self,
        key: builtins.str,
        n_layers: builtins.int,
        default: builtins.int | Required = REQUIRED,
        low: builtins.int = 0,
        high: builtins.int = 2**31 - 1,
    ) -> tuple[builtins.int, ...]:
        """One per layer: from an array of exactly `n_layers`, or a scalar that all share."""
        entry = self._entries.get(self.full_key(key))
        if entry is not None and entry.type is ValueType.ARRAY:
            return self.ints(key, length=n_layers, low=low, high=high)
        return (self.int(key, default, low=low, high=high),) * n_layers

    def _find(self, key: builtins.str, default: object) -> Typed | None:
        entry = self._entries.get(key)
        if entry is None and default is REQUIRED:
            raise self._error(f"metadata key {printable(key)} is missing")
        return entry

    def _find_array(
        self,
        key: builtins.str,
        default: object,
        elements: frozenset[ValueType],
        noun: builtins.str,
        length: builtins.int | None,
    ) -> Typed | None:
        entry = self._find(key, default)
        if entry is None:
            return None
        if entry.element not in elements:
            raise self._wrong(key, f"an array of {noun}")
        found = len(entry.value)
        if length is not None and found != length:
            raise self._error(f"{printable(key)} has {found} elements, expected {length}")
        return entry

    def _in_range(
        self, key: builtins.str, value: builtins.int, low: builtins.int, high: builtins.int
    ) -> builtins.int:
        if not low <= value <= high:
            raise self._error(f"{printable(key)} is {value}, expected {low} to {high}")
        return value

    def _all_in_range(
        self, key: builtins.str, values: NDArray[Any], low: builtins.int, high: builtins.int
    ) -> tuple[builtins.int, ...]:
        # Python's, which do not wrap; those of a planned file are there already.
        numbers = cast("list[int]", np.asarray(values).tolist())
        if numbers and not (low <= min(numbers) and max(numbers) <= high):
            at = next(i for i, number in enumerate(numbers) if not low <= number <= high)
            self._in_range(f"{key}[{at}]", numbers[at], low, high)
        return tuple(numbers)

    def _finite(
        self, key: builtins.str, value: builtins.float, low: builtins.float, high: builtins.float
    ) -> builtins.float:
        if not math.isfinite(value):
            raise self._error(f"{printable(key)} is {value}, expected a finite number")
        if not low <= value <= high:
            raise self._error(f"{printable(key)} is {value}, expected {low:g} to {high:g}")
        return value

    def _wrong(self, key: builtins.str, expected: builtins.str) -> ModelError:
        entry = self._entries[key]
        return self._error(f"{printable(key)} is {entry.description}, expected {expected}")

    def _error(self, message: builtins.str) -> ModelError:
        return ModelError(f"{self._source}: {message}")
