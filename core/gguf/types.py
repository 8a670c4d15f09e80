"""The value types of GGUF metadata and what they are in Python and numpy."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

# What raw access to metadata gives: arrays of numbers are read-only numpy arrays.
Value: TypeAlias = bool | int | float | str | list[str] | NDArray[Any]
Writable: TypeAlias = "Value | bytes | Sequence[bool | int | float | str | bytes] | Typed"


class ValueType(IntEnum):
    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


DTYPES: dict[ValueType, np.dtype[Any]] = {
    ValueType.U8: np.dtype("<u1"),
    ValueType.I8: np.dtype("<i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}

INTEGERS = frozenset(
    {
        ValueType.U8,
        ValueType.I8,
        ValueType.U16,
        ValueType.I16,
        ValueType.U32,
        ValueType.I32,
        ValueType.U64,
        ValueType.I64,
    }
)
FLOATS = frozenset({ValueType.F32, ValueType.F64})


class Typed(Struct, frozen=True):
    """A value with its exact type in the file; `element` is set for arrays only.

    Strings that are not valid UTF-8 are `bytes` here, so that writing gives the same file.
    """

    type: ValueType
    value: Any
    element: ValueType | None = None

    @property
    def description(self) -> str:
        if self.element is not None:
            return f"an array of {self.element.name.lower()}"
        article = "an" if self.type.name[0] in "AI" else "a"
        return f"{article} {self.type.name.lower()}"


def pack_numbers(kind: ValueType, values: Any) -> NDArray[Any]:
    """In the type's own layout. Refuses what would change, except the rounding of floats."""
    exact = kind in INTEGERS or kind is ValueType.BOOL
    if isinstance(values, np.ndarray) and values.dtype == DTYPES[kind] and values.ndim == 1:
        return values
    given = np.asarray(values, object if exact else None)
    stored: NDArray[Any] = given.astype(DTYPES[kind])
    if stored.ndim != 1:
        raise ValueError("not a flat array")
    if exact and not np.array_equal(stored.astype(object), given):
        raise ValueError("a value does not fit")
    return stored


def infer_type(key: str, value: object) -> Typed:
    """What a plain Python or numpy value becomes in a file: 32 bits wherever they are enough."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return Typed(ValueType.BOOL, value)
    if isinstance(value, int):
        try:
            return Typed(_integer_type(value, value, prefer_unsigned=True), value)
        except TypeError as error:
            raise TypeError(f"metadata {key!r}: {error}") from None
    if isinstance(value, float):
        return Typed(ValueType.F32, value)
    if isinstance(value, str | bytes):
        return Typed(ValueType.STRING, value)
    if isinstance(value, np.ndarray):
        return Typed(ValueType.ARRAY, value, _element_of(key, value))
    if isinstance(value, list | tuple):
        return _infer_list(key, list(value))
    raise TypeError(f"metadata {key!r}: {type(value).__name__} has no GGUF type")


def _infer_list(key: str, values: list[Any]) -> Typed:
    kinds = {type(value) for value in values}
    if not kinds:
        raise TypeError(f"metadata {key!r}: an empty list has no element type; use Typed")
    if kinds <= {str, bytes}:
        return Typed(ValueType.ARRAY, values, ValueType.STRING)
    if kinds == {bool}:
        return Typed(ValueType.ARRAY, values, ValueType.BOOL)
    if kinds == {int}:
        element = _integer_type(min(values), max(values), prefer_unsigned=False)
        return Typed(ValueType.ARRAY, values, element)
    if kinds <= {int, float}:
        return Typed(ValueType.ARRAY, values, ValueType.F32)
    raise TypeError(f"metadata {key!r}: a list of mixed or unknown types")


def _integer_type(low: int, high: int, prefer_unsigned: bool) -> ValueType:
    """Scalars are u32 and arrays i32 when they fit, as other writers have it."""
    order = [ValueType.I32, ValueType.U32, ValueType.I64, ValueType.U64]
    if prefer_unsigned:
        order = [ValueType.U32, ValueType.I32, ValueType.U64, ValueType.I64]
    for kind in order:
        bounds = np.iinfo(DTYPES[kind])
        if int(bounds.min) <= low and high <= int(bounds.max):
            return kind
    raise TypeError(f"{low} to {high} does not fit into 64 bits")


def _element_of(key: str, values: NDArray[Any]) -> ValueType:
    wanted = values.dtype.newbyteorder("<")
    for kind, dtype in DTYPES.items():
        if dtype == wanted and values.ndim == 1:
            return kind
    raise TypeError(f"metadata {key!r}: {values.ndim}-D {values.dtype} has no GGUF type")
