"""Small pieces that several formats unpack with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..emit import F32, I8, I16, I32, vector

if TYPE_CHECKING:
    from ..emit import Emitter, Value

I8X64, I16X32, I8X16, I16X16 = vector(I8, 64), vector(I16, 32), vector(I8), vector(I16)
I32X16, F32X16 = vector(I32), vector(F32)


def load64(e: Emitter, address: Value) -> Value:
    return e.load(I8X64, address, 16)


def low(x: Value) -> Value:
    return x & 15


def high(x: Value) -> Value:
    return field(x, 4, 15)


def field(x: Value, shift: int | Value, mask: int) -> Value:
    """(byte >> shift) & mask for 64 bytes; neighbours' bits are masked away."""
    if not isinstance(shift, int) or shift:
        x = (x.bits(I16X32) >> shift).bits(I8X64)
    return x & mask


def raise_bit(x: Value, bit: int, to: int) -> Value:
    """Bit `bit` of each byte, moved to bit `to`, all others 0."""
    words = x.bits(I16X32)
    words = words << (to - bit) if to >= bit else words >> (bit - to)
    return words.bits(I8X64) & (1 << to)


def load_half(e: Emitter, address: Value) -> Value:
    """16 half floats as float32."""
    return e.simd.from_half(e, e.load(I16X16, address, 2))


def load_u8(e: Emitter, address: Value) -> Value:
    """16 bytes as int32."""
    return e.load(I8X16, address, 1).widen(I32X16)


def load_i8(e: Emitter, address: Value) -> Value:
    return e.load(I8X16, address, 1).widen(I32X16, signed=True)
