"""Float weights: 16 rows side by side, one element of each per step; activations stay float."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..emit import F32, I16, I32, vector
from .tile_format import ROWS, SPARSE, CpuTileFormat, Group, Move

if TYPE_CHECKING:
    from ..emit import Emitter, Value


class _Floats(CpuTileFormat):
    span, scale_bytes, is_float = 1, 0, True
    ahead = dict.fromkeys((1,), SPARSE)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        raise AssertionError("float formats are read element by element, see `element`")

    def element(self, e: Emitter, address: Value) -> Value:
        """One element of each of 16 rows as float32."""
        raise AssertionError("each float format has its own")


class Float32(_Floats):
    name, quant_bytes = "F32", 4 * ROWS
    quant_moves = (Move(0, 4, 4),)

    def element(self, e: Emitter, address: Value) -> Value:
        return e.load(vector(F32), address, 4)


class Float16(_Floats):
    name, quant_bytes = "F16", 2 * ROWS
    quant_moves = (Move(0, 2, 2),)

    def element(self, e: Emitter, address: Value) -> Value:
        return e.simd.from_half(e, e.load(vector(I16), address, 2))


class BFloat16(_Floats):
    name, quant_bytes = "BF16", 2 * ROWS
    quant_moves = (Move(0, 2, 2),)

    def element(self, e: Emitter, address: Value) -> Value:
        return (e.load(vector(I16), address, 2).widen(vector(I32)) << 16).bits(vector(F32))
