"""Codebook formats (IQ1, IQ2, IQ3): small groups of elements are entries of a fixed grid.

Each `split_*` gives the signed grid entries as int8 (n, 256) and their float32 scales, (n, 8)
or (n, 16), one per run of neighbours. The element is the product of the two, to the last bit:
a sign commutes with rounding, and IQ1's shift by 1/8 is 8 * grid +- 1 with an eighth of the scale.

The grids are constants of the format. They come from the `gguf` package, imported when the
first such tensor is read, because that import is not free and few files need it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .blocks_32 import half
from .blocks_plain import Blocks, Floats

Split: TypeAlias = tuple[NDArray[np.int8], Floats]


@cache
def grid_of(name: str) -> NDArray[np.int8]:
    """(entries, 4 or 8) grid of one format."""
    from gguf import quants

    owner = getattr(quants, name)
    owner.init_grid()
    return np.ascontiguousarray(owner.grid, np.int8).reshape(owner.grid_shape)


@cache
def even_signs() -> Blocks:
    """The 128 sign bytes of XXS and XS: seven free bits, the eighth makes their number even."""
    codes = np.arange(128, dtype=np.uint8)
    bits = np.unpackbits(codes[:, None], axis=1)
    odd: Blocks = (bits.sum(axis=1) & 1).astype(np.uint8)
    return codes | (odd << np.uint8(7))


def _words(blocks: Blocks, start: int, stop: int, dtype: str) -> NDArray[np.unsignedinteger]:
    words: NDArray[np.unsignedinteger] = np.ascontiguousarray(blocks[:, start:stop]).view(dtype)
    return words


def _bit_fields(words: NDArray[np.unsignedinteger], shifts: list[int], mask: int) -> Blocks:
    """(n, k) words to (n, k * len(shifts)) small numbers."""
    fields = (words[:, :, None] >> np.array(shifts, words.dtype)) & words.dtype.type(mask)
    return fields.reshape(len(words), -1).astype(np.uint8)


def _nibbles(packed: Blocks) -> Blocks:
    """Low half first, then high half, byte by byte."""
    return _bit_fields(packed, [0, 4], 15)


def _signed(name: str, index: NDArray[np.integer], packed_signs: Blocks) -> NDArray[np.int8]:
    """(n, 256) grid entries, negated where the bit of (n, 32) sign bytes is set."""
    bits = np.unpackbits(packed_signs, axis=1, bitorder="little")
    entries = grid_of(name)[index].reshape(len(index), 256)
    signed: NDArray[np.int8] = np.where(bits, -entries, entries)
    return signed


def _quarter_scales(blocks: Blocks, sub: Blocks) -> Floats:
    return half(blocks, 0) * (np.float32(0.5) + sub.astype(np.float32)) * np.float32(0.25)


def split_iq2_xxs(blocks: Blocks) -> Split:
    """Per 32 elements: four grid bytes, then a word of four 7-bit signs and a 4-bit scale."""
    words = _words(blocks, 2, 66, "<u4").reshape(-1, 8, 2)
    index = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    signs = even_signs()[_bit_fields(words[:, :, 1], [0, 7, 14, 21], 127)]
    scales = _quarter_scales(blocks, (words[:, :, 1] >> 28).astype(np.uint8))
    return _signed("IQ2_XXS", index, signs), scales


def split_iq2_xs(blocks: Blocks) -> Split:
    """Per 8 elements a word of 9 grid bits and 7 sign bits; a 4-bit scale per 16."""
    words = _words(blocks, 2, 66, "<u2")
    scales = _quarter_scales(blocks, _nibbles(blocks[:, 66:74]))
    return _signed("IQ2_XS", words & 511, even_signs()[words >> 9]), scales


def split_iq2_s(blocks: Blocks) -> Split:
    """Grid bytes, sign bytes, the grids' top two bits, and a 4-bit scale per 16 elements."""
    high = _bit_fields(blocks[:, 66:74], [0, 2, 4, 6], 3).astype(np.uint16)
    index = blocks[:, 2:34] | (high << 8)
    scales = _quarter_scales(blocks, _nibbles(blocks[:, 74:82]))
    return _signed("IQ2_S", index, blocks[:, 34:66]), scales


def split_iq3_xxs(blocks: Blocks) -> Split:
    """A grid byte per 4 elements; per 32 a word of four 7-bit signs and a 4-bit scale."""
    words = _words(blocks, 66, 98, "<u4")
    signs = even_signs()[_bit_fields(words, [0, 7, 14, 21], 127)]
    sub = np.float32(0.5) + (words >> 28).astype(np.float32)
    return _signed("IQ3_XXS", blocks[:, 2:66], signs), half(blocks, 0) * sub * np.float32(0.5)


def split_iq3_s(blocks: Blocks) -> Split:
    """Grid bytes with a ninth bit, sign bytes, a 4-bit scale per 32 elements."""
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    index = blocks[:, 2:66] | (ninth << 8)
    sub = 1 + 2 * _nibbles(blocks[:, 106:110]).astype(np.float32)
    return _signed("IQ3_S", index, blocks[:, 74:106]), half(blocks, 0) * sub


def _shifted(index: NDArray[np.integer], minus: NDArray[np.bool_]) -> NDArray[np.int8]:
    """(n, 256) of 8 * grid +- 1, with one sign per 8 elements. IQ1_M has the grid of IQ1_S."""
    shift = np.where(minus, np.int8(-1), np.int8(1))
    rows: NDArray[np.int8] = grid_of("IQ1_S")[index] * np.int8(8) + shift[:, :, None]
    return rows.reshape(len(index), 256)


def split_iq1_s(blocks: Blocks) -> Split:
    """Grid bytes; per 32 elements a word: four times 3 grid bits, a 3-bit scale, delta's sign."""
    words = _words(blocks, 34, 50, "<u2")
    high = _bit_fields(words, [0, 3, 6, 9], 7).astype(np.uint16)
    scales = half(blocks, 0) * (2 * ((words >> 12) & 7) + 1).astype(np.float32)
    minus = np.repeat(words >> 15 != 0, 4, axis=1)
    return _shifted(blocks[:, 2:34] | (high << 8), minus), scales * np.float32(0.125)


def scale_iq1_m(blocks: Blocks) -> Floats:
    """The float16 scale is spread over the top nibbles of four words; first word lowest."""
    tops = _words(blocks, 48, 56, "<u2") >> 12
    bits = np.bitwise_or.reduce(tops << np.array([0, 4, 8, 12], np.uint16), axis=1)
    column: Floats = bits.astype("<u2").view("<f2").astype(np.float32)[:, None]
    return column


def split_iq1_m(blocks: Blocks) -> Split:
    """Grid bytes; per 8 elements a nibble of 3 grid bits and delta's sign; 3-bit scale per 16."""
    nibbles = _nibbles(blocks[:, 32:48])
    index = blocks[:, :32] | ((nibbles & 7).astype(np.uint16) << 8)
    sub = _bit_fields(_words(blocks, 48, 56, "<u2"), [0, 3, 6, 9], 7)
    scales = scale_iq1_m(blocks) * (2 * sub.astype(np.float32) + 1)
    return _shifted(index, nibbles & 8 != 0), scales * np.float32(0.125)


def _product(split: Callable[[Blocks], Split]) -> Callable[[Blocks], Floats]:
    def dequantize(blocks: Blocks) -> Floats:
        entries, scales = split(blocks)
        rows = entries.reshape(*scales.shape, -1).astype(np.float32)
        rows *= scales[:, :, None]
        return rows.reshape(-1, 256)

    return dequantize


dequantize_iq2_xxs = _product(split_iq2_xxs)
dequantize_iq2_xs = _product(split_iq2_xs)
dequantize_iq2_s = _product(split_iq2_s)
dequantize_iq3_xxs = _product(split_iq3_xxs)
dequantize_iq3_s = _product(split_iq3_s)
dequantize_iq1_s = _product(split_iq1_s)
dequantize_iq1_m = _product(split_iq1_m)
