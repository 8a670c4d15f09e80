"""The layout of keys and values for each type of the context's cells (`--cache-type-k`, `-v`)."""

from __future__ import annotations

from typing import Final

from ...layers import KvType
from .cells import Keys, Values
from .cells_half import HalfKeys, HalfValues
from .cells_int8 import Int8Keys, Int8Values

_TYPES: Final[dict[KvType, tuple[type[Keys], type[Values]]]] = {
    KvType.F16: (HalfKeys, HalfValues),
    KvType.Q8_0: (Int8Keys, Int8Values),
}


def make_keys(kind: KvType, page_len: int, dim: int) -> Keys:
    return _TYPES[kind][0](page_len, dim)


def make_values(kind: KvType, page_len: int, dim: int) -> Values:
    return _TYPES[kind][1](page_len, dim)
