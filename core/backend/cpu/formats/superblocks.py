"""Formats with super-blocks of 256: Q2_K … Q6_K and IQ4_XS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..emit import I32
from .small_blocks import IQ4_VALUES
from .tile_format import CLOSE, ROWS, SPARSE, TWICE, Bytes, CpuTileFormat, Group, Move
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
    raise_bit,
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


class Q4K(CpuTileFormat):
    """Two half floats and 12 bytes of scales, which become 16: 1.03 of the file's bytes."""

    name = "Q4_K"
    span, quant_bytes, scale_bytes = 256, 128 * ROWS, 2 * HALF + 16 * ROWS
    ahead = dict.fromkeys((1, 2), SPARSE)

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

                yield Group(block, nibble, (scale,), minima=(minimum,))

    @staticmethod
    def scale_and_minimum(e: Emitter, scales: Value, block: Value) -> tuple[Value, Value]:
        d, d_min = load_half(e, scales), load_half(e, scales + HALF)
        at = scales + (2 * HALF) + block * ROWS
        scale = d * load_u8(e, at).to_float(F32X16)
        return scale, d_min * load_u8(e, at + 8 * ROWS).to_float(F32X16)


class Q5K(Q4K):
    """Each half of a super-block has its fifth bits before its nibbles, see `top_bits`."""

    name = "Q5_K"
    quant_bytes = 160 * ROWS
    ahead = dict.fromkeys((1,), CLOSE)

    quant_moves = (Move(20, 16, 4), Move(52, 64, 4), Move(36, 16, 4), Move(116, 64, 4))

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        prepared = super().prepare(blocks, type_name)
        prepared[..., 20:52] = regroup_top_bits(prepared[..., 20:52])
        return prepared

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        with e.range(0, 2) as half:
            fifths = quants + half * (80 * ROWS)
            for g in range(4):
                block = half * 4 + g
                scale, minimum = self.scale_and_minimum(e, scales, block)

                def five(v: int, g: int = g, fifths: Value = fifths) -> Value:
                    packed = load64(e, fifths + (16 * ROWS + 32 * ROWS * (g // 2) + 64 * v))
                    nibble = high(packed) if g % 2 else low(packed)
                    return nibble | top_bits(e, fifths, g, v, 4)

                yield Group(block, five, (scale,), minima=(minimum,))


def regroup_top_bits(bits: Bytes) -> Bytes:
    """32 bytes whose bit b belongs to block b, as 16 bytes for each half of the super-block.

    Bits 0 to 3 of such a byte are those of element j in the half's blocks, 4 to 7 of element
    j + 16: what is shifted by how much is known when a kernel is written.
    """
    halves = [bits & 15, bits >> 4]
    return np.concatenate([x[..., :16] | (x[..., 16:] << 4) for x in halves], axis=-1)


def top_bits(e: Emitter, address: Value, g: int, v: int, to: int) -> Value:
    """Of vector v of a half's block g, moved to bit `to`, all others 0."""
    return raise_bit(load64(e, address + 64 * (v % 4)), g if v < 4 else 4 + g, to)


class Q6K(CpuTileFormat):
    """Of each half of a super-block: 32 bytes of nibbles, the upper bits, 32 bytes of nibbles."""

    name = "Q6_K"
    span, quant_bytes, scale_bytes = 256, 192 * ROWS, HALF + 16 * ROWS
    ahead = dict.fromkeys((1, 2), TWICE)

    quant_moves = (
        Move(0, 32, 4), Move(128, 32, 4), Move(32, 32, 4),
        Move(64, 32, 4), Move(160, 32, 4), Move(96, 32, 4),
    )  # fmt: skip
    scale_moves = (Move(208, 2, 2), Move(192, 16, 1))

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        d = load_half(e, scales)
        with e.range(0, 2) as half:
            at = quants + half * (96 * ROWS)
            for g in range(4):
                block = half * 4 + g

                def six(v: int, g: int = g, at: Value = at) -> Value:
                    base = load64(e, at + (64 * ROWS * (g % 2) + 64 * v))
                    top = field(load64(e, at + (32 * ROWS + 64 * v)), 2 * g, 3)
                    top = (top.bits(I16X32) << 4).bits(I8X64)
                    return (high(base) if g > 1 else low(base)) | top

                first = scales + HALF + block * (2 * ROWS)
                factors = (load_i8(e, first + ROWS * i).to_float(F32X16) for i in (0, 1))
                yield Group(block, six, tuple(d * factor for factor in factors), zero=32)


class Q3K(CpuTileFormat):
    """Each half of a super-block has its third bits before the other two, see `top_bits`."""

    name = "Q3_K"
    span, quant_bytes, scale_bytes = 256, 96 * ROWS, HALF + 12 * ROWS
    ahead = dict.fromkeys((1,), CLOSE)

    quant_moves = (Move(0, 16, 4), Move(32, 32, 4), Move(16, 16, 4), Move(64, 32, 4))
    scale_moves = (Move(108, 2, 2), Move(96, 12, 1))

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        return np.concatenate([regroup_top_bits(blocks[..., :32]), blocks[..., 32:]], axis=-1)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        d = load_half(e, scales)
        with e.range(0, 2) as half:
            thirds = quants + half * (48 * ROWS)
            for g in range(4):

                def three(v: int, g: int = g, thirds: Value = thirds) -> Value:
                    base = field(load64(e, thirds + (16 * ROWS + 64 * v)), 2 * g, 3)
                    return base | top_bits(e, thirds, g, v, 2)

                factors = (self._scale(e, scales, half, 2 * g + i) for i in (0, 1))
                both = tuple(d * factor.to_float(F32X16) for factor in factors)
                yield Group(half * 4 + g, three, both, zero=4)

    @staticmethod
    def _scale(e: Emitter, scales: Value, half: Value, s: int) -> Value:
        """Scale s of a half: 4 bits of byte s, shifted for the second half; 2 of byte 8 + s % 4."""
        first = e.load(I8X16, scales + HALF + ROWS * s, 1).widen(I32X16)
        second = e.load(I8X16, scales + HALF + ROWS * (8 + s % 4), 1).widen(I32X16)
        word = half.narrow(I32)
        nibble = (first >> e.splat(word * 4)) & 15
        top = (second >> e.splat(word * 4 + 2 * (s // 4))) & 3
        return (nibble | (top << 4)) - 32


class Q2K(CpuTileFormat):
    name = "Q2_K"
    span, quant_bytes, scale_bytes = 256, 64 * ROWS, 2 * HALF + 16 * ROWS
    ahead = dict.fromkeys((1,), CLOSE)

    quant_moves = (Move(16, 64, 4),)
    scale_moves = (Move(80, 4, 2), Move(0, 16, 1))

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        d, d_min = load_half(e, scales), load_half(e, scales + HALF)
        with e.range(0, 2) as half:
            for g in range(4):
                block = half * 4 + g
                at = quants + half * (32 * ROWS)

                def two(v: int, g: int = g, at: Value = at) -> Value:
                    return field(load64(e, at + 64 * v), 2 * g, 3)

                packed = [
                    load_u8(e, scales + 2 * HALF + block * (2 * ROWS) + ROWS * i) for i in (0, 1)
                ]
                factors = tuple(d * (both & 15).to_float(F32X16) for both in packed)
                minima = tuple(d_min * (both >> 4).to_float(F32X16) for both in packed)
                yield Group(block, two, factors, minima=minima)


class Iq4Xs(CpuTileFormat):
    name = "IQ4_XS"
    span, quant_bytes, scale_bytes = 256, 128 * ROWS, 2 * HALF + 4 * ROWS
    ahead = dict.fromkeys((1, 2), SPARSE)

    quant_moves = (Move(8, 128, 4),)
    scale_moves = (Move(0, 4, 2), Move(4, 4, 1))

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        d = load_half(e, scales)
        high_bits = e.load(I16X16, scales + HALF, 2).widen(I32X16)
        with e.range(0, 8) as block:
            at = quants + block * (self.quant_bytes // 8)

            def entry(v: int, at: Value = at) -> Value:
                return self.entry(e, at, v)

            j = block.narrow(I32)
            byte = load_u8(e, scales + 2 * HALF + (block // 2) * ROWS)
            nibble = (byte >> e.splat((j & 1) * 4)) & 15
            top = (high_bits >> e.splat(j * 2)) & 3
            scale = d * ((nibble | (top << 4)) - 32).to_float(F32X16)
            yield Group(block, entry, (scale,), zero=128)

    @staticmethod
    def entry(e: Emitter, at: Value, v: int) -> Value:
        packed = load64(e, at + 64 * (v % 4))
        table = [value + 128 for value in IQ4_VALUES]
        return e.simd.lookup(e, table, low(packed) if v < 4 else high(packed))
