"""Kernels that quantise: one for each type. Layouts: core/gguf/blocks_32.py and blocks_k.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...core.backend.cpu.emit import Emitter, Value
from ...core.backend.cpu.kernels.mathematics import F32X16, I32X16
from ...core.backend.cpu.machine_code import Writer
from ...core.gguf.quants import find_format
from .scale_search import (
    Codebook,
    Fp4,
    Grid,
    MinimumSearch,
    Uniform,
    scale_and_minimum,
    signed_scale,
)
from .sixteen_blocks import (
    BestCandidate,
    SixteenBlocks,
    all_blocks,
    clamped,
    inverse,
    like,
    magnitude,
    rounded,
    to_int,
)
from .super_blocks import BlockScales, MinimaSearch, SignedSearch


def _signed_32(blocks: SixteenBlocks, grid: Grid, *, has_fifth_bit: bool = False) -> None:
    segment = blocks.segment()
    back = inverse(blocks.set_half(0, signed_scale(segment, grid)))
    with segment.each() as j:
        blocks.set_code(j, grid.code(segment.x(j) * back))
    _pack_32(blocks, 2, has_fifth_bit)


def _minimum_32(blocks: SixteenBlocks, top: int) -> None:
    segment = blocks.segment()
    scale, minimum = scale_and_minimum(segment, MinimumSearch(top))
    back = inverse(blocks.set_half(0, scale))
    minimum = blocks.set_half(2, minimum)
    with segment.each() as j:
        blocks.set_code(j, to_int(rounded(clamped((segment.x(j) - minimum) * back, 0, top))))
    _pack_32(blocks, 4, has_fifth_bit=top > 15)


def _q8_0(blocks: SixteenBlocks) -> None:
    """No search: 255 steps leave nothing to gain, and the bytes equal those of other tools."""
    segment = blocks.segment()
    scale = magnitude(segment.extreme()) * (1 / 127)
    blocks.set_half(0, scale)
    back = inverse(scale)
    with segment.each() as j:
        blocks.set_byte(j + 2, to_int(rounded(clamped(segment.x(j) * back, -127, 127))))


def _mxfp4(blocks: SixteenBlocks) -> None:
    """The scale is a power of two: that of the largest element, or one of its neighbours."""
    segment, grid = blocks.segment(), Fp4()
    largest = magnitude(segment.extreme())
    exponent = largest.bits(I32X16) >> 23
    best = BestCandidate(blocks.e, -3e38, 1)
    for below in (2, 1, 3):
        at = exponent - below
        at = (at < 2).select(like(at, 2), at)
        at = (at > 252).select(like(at, 252), at)
        best.consider(0.0 - segment.error(_read_back(grid, at)), at.to_float(F32X16))
    at = to_int(best.values[0])
    # A block of zeros has no scale; anything below 2^-120 is as good as zero.
    at = (largest < 2.0**-120).select(like(at, 2), at)
    blocks.set_byte(0, (largest > 0.0).select(at, like(at, 0)))
    _, back = _powers(at)
    with segment.each() as j:
        blocks.set_code(j, grid.code(segment.x(j) * back))
    _nibbles(blocks, 1, 16)


def _powers(at: Value) -> tuple[Value, Value]:
    """2^(at - 128) and its inverse."""
    return ((at - 1) << 23).bits(F32X16), ((255 - at) << 23).bits(F32X16)


def _read_back(grid: Grid, at: Value) -> Callable[[Value], Value]:
    scale, back = _powers(at)
    return lambda x: grid.nearest(x * back) * scale


def _q2_k(blocks: SixteenBlocks) -> None:
    search = MinimumSearch(3, first=-0.9, step=0.2, count=10, is_below_zero=True)
    found = MinimaSearch(blocks, 16, 15, search).find()
    scales, minima = found.numbers
    with blocks.e.range(0, 16) as s:
        blocks.set_byte(s, scales.int(s) | (minima.int(s) << 4))
    _pairs_of_bits(blocks, 16, 0)
    blocks.set_half(80, found.units[0])
    blocks.set_half(82, found.units[1])


def _q4_k(blocks: SixteenBlocks) -> None:
    _set_head_k4(blocks, MinimaSearch(blocks, 8, 63, MinimumSearch(15, is_below_zero=True)).find())
    _nibbles(blocks, 16, 32)


def _q5_k(blocks: SixteenBlocks) -> None:
    _set_head_k4(blocks, MinimaSearch(blocks, 8, 63, MinimumSearch(31, is_below_zero=True)).find())
    _top_bits(blocks, 16, 32, 4, (1, 32))
    _nibbles(blocks, 48, 32)


def _q3_k(blocks: SixteenBlocks) -> None:
    found = SignedSearch(blocks, 16, (-32, 31), Uniform(4, 0.2, 1.0)).find()
    _top_bits(blocks, 0, 32, 2, (1, 32))
    _pairs_of_bits(blocks, 32, 0)
    numbers = [found.numbers[0].int(s) + 32 for s in range(16)]
    for s in range(8):
        blocks.set_byte(96 + s, _nibble_pair(numbers[s], numbers[s + 8]))
    for s in range(4):
        blocks.set_byte(104 + s, _high_pairs(numbers[s::4]))
    blocks.set_half(108, found.units[0])


def _q6_k(blocks: SixteenBlocks) -> None:
    found = SignedSearch(blocks, 16, (-128, 127), Uniform(32, 0.5, 1.5)).find()
    _nibbles(blocks, 0, 64)
    _pairs_of_bits(blocks, 128, 4)
    with blocks.e.range(0, 16) as s:
        blocks.set_byte(s + 192, found.numbers[0].int(s))
    blocks.set_half(208, found.units[0])


def _iq4_xs(blocks: SixteenBlocks) -> None:
    found = SignedSearch(blocks, 8, (-32, 31), Codebook()).find()
    blocks.set_half(0, found.units[0])
    numbers = [found.numbers[0].int(s) + 32 for s in range(8)]
    for i in range(2):
        blocks.set_byte(2 + i, _high_pairs(numbers[4 * i : 4 * i + 4]))
    for i in range(4):
        blocks.set_byte(4 + i, _nibble_pair(numbers[2 * i], numbers[2 * i + 1]))
    _nibbles(blocks, 8, 16)


def _set_head_k4(blocks: SixteenBlocks, found: BlockScales) -> None:
    """Scale, minimum, and eight pairs of 6 bits in twelve bytes."""
    blocks.set_half(0, found.units[0])
    blocks.set_half(2, found.units[1])
    scales, minima = ([column.int(s) for s in range(8)] for column in found.numbers)
    for s in range(4):
        blocks.set_byte(4 + s, scales[s] | ((scales[s + 4] >> 4) << 6))
        blocks.set_byte(8 + s, minima[s] | ((minima[s + 4] >> 4) << 6))
        blocks.set_byte(12 + s, _nibble_pair(scales[s + 4], minima[s + 4]))


def _pack_32(blocks: SixteenBlocks, first: int, has_fifth_bit: bool) -> None:
    if has_fifth_bit:
        _top_bits(blocks, first, 4, 4, (8, 1))
        first += 4
    _nibbles(blocks, first, 16)


def _nibbles(blocks: SixteenBlocks, first: int, run: int) -> None:
    """Runs of codes in pairs: one run low, the next one high."""
    for pair in range(blocks.size // (2 * run)):
        with blocks.e.range(0, run) as k:
            low, high = (blocks.code(k + run * (2 * pair + i)) for i in range(2))
            blocks.set_byte(k + (first + run * pair), _nibble_pair(low, high))


def _top_bits(
    blocks: SixteenBlocks, first: int, n_bytes: int, shift: int, steps: tuple[int, int]
) -> None:
    """The bit `shift` of each code; `steps`: from byte to byte, and from bit to bit."""
    with blocks.e.range(0, n_bytes) as k:
        byte = blocks.e.const(I32X16, 0)
        for bit in range(8):
            code = blocks.code(k * steps[0] + bit * steps[1])
            byte = byte | ((code >> shift) << bit)
        blocks.set_byte(k + first, byte)


def _pairs_of_bits(blocks: SixteenBlocks, first: int, shift: int) -> None:
    """Two bits of each code, from `shift` on: four rows of 32 in each of two runs of bytes."""
    for h in range(2):
        with blocks.e.range(0, 32) as k:
            byte = blocks.e.const(I32X16, 0)
            for g in range(4):
                code = blocks.code(k + (128 * h + 32 * g))
                byte = byte | (((code >> shift) & 3) << (2 * g))
            blocks.set_byte(k + (first + 32 * h), byte)


def _nibble_pair(low: Value, high: Value) -> Value:
    return (low & 15) | ((high & 15) << 4)


def _high_pairs(numbers: list[Value]) -> Value:
    """Bits 4 and 5 of four numbers in a byte."""
    pairs = [(number >> 4) << (2 * i) for i, number in enumerate(numbers)]
    return pairs[0] | pairs[1] | pairs[2] | pairs[3]


def _writer(name: str, quantise: Callable[[SixteenBlocks], None]) -> Writer:
    fmt = find_format(name)

    def write(e: Emitter) -> None:
        blocks = SixteenBlocks(e, fmt.block_size, fmt.block_bytes)
        with all_blocks(e, blocks):
            quantise(blocks)

    return write


_QUANTISE: dict[str, Callable[[SixteenBlocks], None]] = {
    "Q4_0": partial(_signed_32, grid=Uniform(8, 0.25, 1.5)),
    "Q4_1": partial(_minimum_32, top=15),
    "Q5_0": partial(_signed_32, grid=Uniform(16, 0.4, 1.6), has_fifth_bit=True),
    "Q5_1": partial(_minimum_32, top=31),
    "Q8_0": _q8_0,
    "IQ4_NL": partial(_signed_32, grid=Codebook()),
    "MXFP4": _mxfp4,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
}
WRITERS = {name: _writer(name, quantise) for name, quantise in _QUANTISE.items()}
