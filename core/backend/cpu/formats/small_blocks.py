"""Formats with blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .tile_format import CLOSE, ROWS, SPARSE, Bytes, CpuTileFormat, Group, Move
from .unpack import F32X16, I32X16, high, load64, load_half, load_u8, low, raise_bit

if TYPE_CHECKING:
    from ..emit import Emitter, Value


class Q8_0(CpuTileFormat):
    name = "Q8_0"
    ahead = dict.fromkeys((1, 2, 4), SPARSE)
    span, quant_bytes, scale_bytes = 32, 32 * ROWS, 2 * ROWS

    quant_moves, scale_moves = (Move(2, 32, 4),), (Move(0, 2, 2),)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        def unsigned(v: int) -> Value:
            return load64(e, quants + 64 * v) ^ -128

        yield Group(e.index(0), unsigned, (load_half(e, scales),), zero=128)


class _Nibbles(CpuTileFormat):
    """16 bytes a row: byte j holds element j low and element j + 16 high."""

    span, quant_bytes = 32, 16 * ROWS
    ahead = dict.fromkeys((1, 2), SPARSE)
    quant_moves: ClassVar[tuple[Move, ...]] = (Move(2, 16, 4),)
    scale_moves: ClassVar[tuple[Move, ...]] = (Move(0, 2, 2),)

    @staticmethod
    def nibbles(e: Emitter, quants: Value, v: int) -> Value:
        packed = load64(e, quants + 64 * (v % 4))
        return low(packed) if v < 4 else high(packed)


class Q4_0(_Nibbles):
    name = "Q4_0"
    scale_bytes = 2 * ROWS

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        yield Group(
            e.index(0), lambda v: self.nibbles(e, quants, v), (load_half(e, scales),), zero=8
        )


class Q4_1(_Nibbles):
    name = "Q4_1"
    scale_bytes = 4 * ROWS
    quant_moves, scale_moves = (Move(4, 16, 4),), (Move(0, 4, 2),)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        yield Group(
            e.index(0),
            lambda v: self.nibbles(e, quants, v),
            (load_half(e, scales),),
            minima=(e.const(F32X16, 0.0) - load_half(e, scales + 2 * ROWS),),
        )


class _Table(_Nibbles):
    """Nibbles that index a table of signed values."""

    values: ClassVar[tuple[int, ...]]

    def entry(self, e: Emitter, quants: Value, v: int) -> Value:
        table = [value + 128 for value in self.values]
        return e.simd.lookup(e, table, self.nibbles(e, quants, v))


IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Iq4Nl(_Table):
    name = "IQ4_NL"
    scale_bytes = 2 * ROWS
    values = IQ4_VALUES

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        yield Group(
            e.index(0), lambda v: self.entry(e, quants, v), (load_half(e, scales),), zero=128
        )


class Mxfp4(_Table):
    name = "MXFP4"
    scale_bytes = ROWS
    quant_moves, scale_moves = (Move(1, 16, 4),), (Move(0, 1, 1),)
    values = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

    @staticmethod
    def scale(e: Emitter, scales: Value) -> Value:
        exponent = load_u8(e, scales)
        # 2^(exponent - 128): subnormal for 0 and 1.
        small = e.const(I32X16, 0x00200000) << exponent
        return (exponent < 2).select(small, (exponent - 1) << 23).bits(F32X16)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        scale = self.scale(e, scales)
        yield Group(e.index(0), lambda v: self.entry(e, quants, v), (scale,), zero=128)


class _FiveBits(_Nibbles):
    """Nibbles and 32 fifth bits. Byte t of the regrouped bits holds bit v of element 4 v + t."""

    quant_bytes = 20 * ROWS
    ahead = dict.fromkeys((1,), CLOSE)
    header: ClassVar[int] = 2  # bytes of scales before the fifth bits
    quant_moves, scale_moves = (Move(6, 16, 4), Move(2, 4, 4)), (Move(0, 2, 2),)

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        fifth = blocks[..., self.header : self.header + 4]
        bits = np.unpackbits(fifth, axis=-1, bitorder="little")  # (..., 32), by element
        by_byte = bits.reshape(*bits.shape[:-1], 8, 4).swapaxes(-1, -2)
        regrouped = blocks.copy()
        regrouped[..., self.header : self.header + 4] = np.packbits(
            by_byte, axis=-1, bitorder="little"
        )[..., 0]
        return regrouped

    def five(self, e: Emitter, quants: Value, v: int) -> Value:
        fifth = load64(e, quants + 16 * ROWS)
        return self.nibbles(e, quants, v) | raise_bit(fifth, v, 4)


class Q5_0(_FiveBits):
    name = "Q5_0"
    scale_bytes = 2 * ROWS

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        yield Group(e.index(0), lambda v: self.five(e, quants, v), (load_half(e, scales),), zero=16)


class Q5_1(_FiveBits):
    name = "Q5_1"
    header, scale_bytes = 4, 4 * ROWS
    quant_moves, scale_moves = (Move(8, 16, 4), Move(4, 4, 4)), (Move(0, 4, 2),)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        yield Group(
            e.index(0),
            lambda v: self.five(e, quants, v),
            (load_half(e, scales),),
            minima=(e.const(F32X16, 0.0) - load_half(e, scales + 2 * ROWS),),
        )
