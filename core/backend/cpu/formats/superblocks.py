"""Formats with super-blocks of 256: Q2_K … Q6_K and IQ4_XS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..emit import I32
from .base import ROWS, Bytes, Group, Move, TileFormat
from .blocks import IQ4_VALUES
from .unpack import (
    F32X16,
    I8X16,
    I8X64,
    I16X16,
    I16X32,
    I32X16,
    field,
    high,
    load64,
    load_half,
    load_i8,
    load_u8,
    low,
)

if TYPE_CHECKING:
    from ..emit import Emitter, Value

HALF = 2 * ROWS  # bytes of one half float of each row


def six_bit_pairs(scales: Bytes) -> tuple[Bytes, Bytes]:
    """The 12 packed bytes of Q4_K and Q5_K as 8 scales and 8 minima."""
    first, second, third = scales[..., :4], scales[..., 4:8], scales[..., 8:]
    scale = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=-1)
    minimum = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    return scale, minimum


class Q4K(TileFormat):
    """Two half floats and 12 bytes of scales, which become 16: 1.03 of the file's bytes."""

    name = "Q4_K"
    span, quant_bytes, scale_bytes = 256, 128 * ROWS, 2 * HALF + 16 * ROWS

    quant_moves: ClassVar[tuple[Move, ...]] = (Move(20, 128, 4),)
    scale_moves = (Move(0, 4, 2), Move(4, 16, 1))

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        """The 12 bytes of scales unpacked to 8 scales and 8 minima."""
        scale, minimum = six_bit_pairs(blocks[..., 4:16])
        parts = [blocks[..., :4], scale, minimum, blocks[..., 16:]]
        return np.concatenate(parts, axis=-1)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        with e.range(0, 4) as chunk:  # 32 bytes: sub-block 2 chunk low, 2 chunk + 1 high
            at = quants + chunk * (32 * ROWS)
            for upper in (0, 1):
                block = chunk * 2 + upper
                scale, minimum = self.scale_and_minimum(e, scales, block)

                def nibble(v: int, at: Value = at, upper: int = upper) -> Value:
                    packed = load64(e, at + 64 * v)
                    return high(packed) if upper else low(packed)

                yield Group(block, nibble, (scale,), minimum=minimum)

    @staticmethod
    def scale_and_minimum(e: Emitter, scales: Value, block: Value) -> tuple[Value, Value]:
        d, d_min = load_half(e, scales), load_half(e, scales + HALF)
        at = scales + (2 * HALF) + block * ROWS
        scale = d * load_u8(e, at).to_float(F32X16)
        return scale, d_min * load_u8(e, at + 8 * ROWS).to_float(F32X16)


class Q5K(Q4K):
    name = "Q5_K"
    quant_bytes = 160 * ROWS

    quant_moves = (Move(52, 128, 4), Move(20, 32, 4))

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        with e.range(0, 4) as chunk:
            at = quants + chunk * (32 * ROWS)
            for upper in (0, 1):
                block = chunk * 2 + upper
                scale, minimum = self.scale_and_minimum(e, scales, block)
                shift = e.splat(block.narrow(I32), 16)

                def five(v: int, at: Value = at, upper: int = upper, shift: Value = shift) -> Value:
                    packed = load64(e, at + 64 * v)
                    fifth = load64(e, quants + (128 * ROWS + 64 * v)).bits(I32X16) >> shift
                    bit = ((fifth & 0x01010101) << 4).bits(I8X64)
                    return (high(packed) if upper else low(packed)) | bit

                yield Group(block, five, (scale,), minimum=minimum)


class Q6K(TileFormat):
    name = "Q6_K"
    span, quant_bytes, scale_bytes = 256, 192 * ROWS, HALF + 16 * ROWS

    quant_moves = (Move(0, 128, 4), Move(128, 64, 4))
    scale_moves = (Move(208, 2, 2), Move(192, 16, 1))

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        d = load_half(e, scales)
        with e.range(0, 2) as half:
            for g in range(4):
                lows = quants + half * (64 * ROWS) + 32 * ROWS * (g & 1)
                highs = quants + 128 * ROWS + half * (32 * ROWS)
                block = half * 4 + g

                def six(v: int, g: int = g, lows: Value = lows, highs: Value = highs) -> Value:
                    base = load64(e, lows + 64 * v)
                    top = field(load64(e, highs + 64 * v), 2 * g, 3)
                    top = (top.bits(I16X32) << 4).bits(I8X64)
                    return (high(base) if g > 1 else low(base)) | top

                at = scales + HALF + block * (2 * ROWS)
                multipliers = (load_i8(e, at), load_i8(e, at + ROWS))
                yield Group(block, six, (d,), zero=32, multipliers=multipliers)


class Q3K(TileFormat):
    name = "Q3_K"
    span, quant_bytes, scale_bytes = 256, 96 * ROWS, HALF + 12 * ROWS

    quant_moves = (Move(32, 64, 4), Move(0, 32, 4))
    scale_moves = (Move(108, 2, 2), Move(96, 12, 1))

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        d = load_half(e, scales)
        with e.range(0, 2) as half:
            for g in range(4):
                block = half * 4 + g
                twos = quants + half * (32 * ROWS)
                shift = e.splat(block.narrow(I32), 16)

                def three(v: int, g: int = g, twos: Value = twos, shift: Value = shift) -> Value:
                    base = field(load64(e, twos + 64 * v), 2 * g, 3)
                    masks = load64(e, quants + (64 * ROWS + 64 * v)).bits(I32X16) >> shift
                    return base | ((masks & 0x01010101) << 2).bits(I8X64)

                first, second = (self._scale(e, scales, half, 2 * g + i) for i in (0, 1))
                yield Group(block, three, (d,), zero=4, multipliers=(first, second))

    @staticmethod
    def _scale(e: Emitter, scales: Value, half: Value, s: int) -> Value:
        """Scale s of a half: 4 bits of byte s, shifted for the second half; 2 of byte 8 + s % 4."""
        first = e.load(I8X16, scales + HALF + ROWS * s, 1).widen(I32X16)
        second = e.load(I8X16, scales + HALF + ROWS * (8 + s % 4), 1).widen(I32X16)
        word = half.narrow(I32)
        nibble = (first >> e.splat(word * 4)) & 15
        top = (second >> e.splat(word * 4 + 2 * (s // 4))) & 3
        return (nibble | (top << 4)) - 32


class Q2K(TileFormat):
    name = "Q2_K"
    span, quant_bytes, scale_bytes = 256, 64 * ROWS, 2 * HALF + 16 * ROWS

    quant_moves = (Move(16, 64, 4),)
    scale_moves = (Move(80, 4, 2), Move(0, 16, 1))

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        d, d_min = load_half(e, scales), load_half(e, scales + HALF) * (1 / 128)
        with e.range(0, 2) as half:
            for g in range(4):
                block = half * 4 + g
                at = quants + half * (32 * ROWS)

                def two(v: int, g: int = g, at: Value = at) -> Value:
                    return field(load64(e, at + 64 * v), 2 * g, 3)

                packed = [
                    load_u8(e, scales + 2 * HALF + block * (2 * ROWS) + ROWS * i) for i in (0, 1)
                ]
                yield Group(
                    block,
                    two,
                    (d,),
                    multipliers=(packed[0] & 15, packed[1] & 15),
                    half_minima=(packed[0] >> 4, packed[1] >> 4, d_min),
                )


class Iq4Xs(TileFormat):
    name = "IQ4_XS"
    span, quant_bytes, scale_bytes = 256, 128 * ROWS, 2 * HALF + 4 * ROWS

    quant_moves = (Move(8, 128, 4),)
    scale_moves = (Move(0, 4, 2), Move(4, 4, 1))

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        d = load_half(e, scales)
        high_bits = e.load(I16X16, scales + HALF, 2).widen(I32X16)
        table = [value + 128 for value in IQ4_VALUES]
        with e.range(0, 8) as block:
            at = quants + block * (16 * ROWS)

            def entry(v: int, at: Value = at) -> Value:
                packed = load64(e, at + 64 * (v % 4))
                return e.simd.lookup(e, table, low(packed) if v < 4 else high(packed))

            j = block.narrow(I32)
            byte = load_u8(e, scales + 2 * HALF + (block // 2) * ROWS)
            nibble = (byte >> e.splat((j & 1) * 4)) & 15
            top = (high_bits >> e.splat(j * 2)) & 3
            scale = d * ((nibble | (top << 4)) - 32).to_float(F32X16)
            yield Group(block, entry, (scale,), zero=128)
