"""Tiles of each format, and the file's blocks again (`repack.py`; `include/qmm_formats.cuh`).

Packing takes (tiles, 16 rows, k blocks, bytes of 256 values) and gives (tiles, k blocks, bytes of a
tile). Codes are handled as 32-bit words of four values of k. A word's place is (sub-block, half,
t), as lane 4 * group + t has bytes 16 * half + 4 * t ... + 3 of sub-block, for rows group and
group + 8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
_U = np.uint32


def _words(blocks: Bytes) -> Words:
    return np.ascontiguousarray(blocks).view("<u4")


def _joined(*parts: NDArray[np.generic]) -> Bytes:
    """Parts of tiles, (tiles, k blocks, ...), one behind the other."""
    shape = parts[0].shape[:2]
    flat = [np.ascontiguousarray(part).reshape(*shape, -1).view(np.uint8) for part in parts]
    return np.concatenate(flat, axis=-1)


def _split(tiles: Bytes, *sizes: int) -> list[Bytes]:
    ends = np.cumsum(sizes)
    return [
        np.ascontiguousarray(tiles[..., end - size : end])
        for end, size in zip(ends, sizes, strict=True)
    ]


# (tiles, 16, k blocks, n, 2, 4) words to (tiles, k blocks, n, lane, 4): the two of the middle
# axis, for rows group and group + 8 each.


def _to_lanes(words: Words) -> Words:
    tiles, _, blocks = words.shape[:3]
    shaped = words.reshape(tiles, 2, 8, blocks, -1, 2, 4)
    return np.ascontiguousarray(shaped.transpose(0, 3, 4, 2, 6, 5, 1)).reshape(
        tiles, blocks, -1, 32, 4
    )


def _from_lanes(lanes: Words) -> Words:
    tiles, blocks = lanes.shape[:2]
    shaped = lanes.reshape(tiles, blocks, -1, 8, 4, 2, 2).transpose(0, 6, 3, 1, 2, 5, 4)
    return np.ascontiguousarray(shaped).reshape(tiles, 16, blocks, -1)


def _to_rows(blocks: Bytes) -> Bytes:
    """What every row has for itself, row after row."""
    return blocks.swapaxes(1, 2)


def _from_rows(part: Bytes) -> Bytes:
    tiles, blocks = part.shape[:2]
    return part.reshape(tiles, blocks, 16, -1).swapaxes(1, 2)


def _blocks_of_32(blocks: Bytes) -> Bytes:
    return blocks.reshape(*blocks.shape[:3], 8, -1)


def _whole(*parts: Bytes) -> Bytes:
    """Blocks of 32 put together from parts (tiles, 16, k blocks, 8, ...)."""
    joined = np.concatenate(parts, axis=-1)
    return joined.reshape(*joined.shape[:3], -1)


def _per_block(part: Bytes) -> Bytes:
    """(tiles, 16, k blocks, 8 x n) of a part that `_to_rows` made: (tiles, 16, k blocks, 8, n)"""
    return _blocks_of_32(_from_rows(part))


# Five bits: bits 3 ... 7 of X0 ... X4 are F0 ... F4, bits 0 ... 2 hold F5 ... F7. A code is a byte.


def _to_fives(codes: Words) -> Words:
    """(tiles, 16, k blocks, 64) words to (tiles, k blocks, 5, lane, 4)"""
    f = _planes(codes, 2)
    f5, f6, f7 = f[5:]
    x = f[:5] << _U(3)
    x[0] |= (f5 >> _U(2)) & _U(0x07070707)
    x[1] |= (f5 & _U(0x03030303)) | ((f7 << _U(1)) & _U(0x04040404))
    x[2] |= (f6 >> _U(2)) & _U(0x07070707)
    x[3] |= (f6 & _U(0x03030303)) | ((f7 << _U(2)) & _U(0x04040404))
    x[4] |= (f7 >> _U(2)) & _U(0x07070707)
    return _in_fours(x)


def _planes(codes: Words, together: int) -> Words:
    """Words of fragments by their number in so many sub-blocks: (4 * together, tiles, k blocks,
    pieces, lane)."""
    tiles, _, blocks = codes.shape[:3]
    pieces = 8 // together
    shaped = codes.reshape(tiles, 2, 8, blocks, pieces, together, 2, 4)
    ordered = np.ascontiguousarray(shaped.transpose(5, 6, 1, 0, 3, 4, 2, 7))
    return ordered.reshape(4 * together, tiles, blocks, pieces, 32)


def _in_fours(x: Words) -> Words:
    """(n, tiles, k blocks, pieces, lane) to (tiles, k blocks, n * pieces / 4, lane, 4)"""
    n, tiles, blocks, pieces = x.shape[:4]
    fours = np.empty((tiles, blocks, n * pieces // 4, 32, 4), np.uint32)
    for word in range(n * pieces):
        fours[:, :, word // 4, :, word % 4] = x[word % n, :, :, word // n]
    return fours


def _from_fives(part: Bytes) -> Words:
    shape = part.shape[:2]
    x = _words(part).reshape(*shape, 5, 32, 4).swapaxes(2, 3).reshape(*shape, 32, 4, 5)
    f = np.empty((*shape, 32, 4, 8), np.uint32)
    f[..., :5] = (x >> _U(3)) & _U(0x1F1F1F1F)
    f[..., 5] = ((x[..., 0] << _U(2)) & _U(0x1C1C1C1C)) | (x[..., 1] & _U(0x03030303))
    f[..., 6] = ((x[..., 2] << _U(2)) & _U(0x1C1C1C1C)) | (x[..., 3] & _U(0x03030303))
    f[..., 7] = (x[..., 4] << _U(2)) & _U(0x1C1C1C1C)
    f[..., 7] |= (x[..., 1] >> _U(1)) & _U(0x02020202)
    f[..., 7] |= (x[..., 3] >> _U(2)) & _U(0x01010101)
    lanes = f.reshape(*shape, 32, 4, 2, 4).transpose(0, 1, 3, 4, 2, 5)
    return _from_lanes(lanes.reshape(*shape, 8, 32, 4))


# Six bits: bits 2 ... 7 of X0 ... X2 are F0 ... F2, bits 0 and 1 hold F3.


def _to_sixes(codes: Words) -> Words:
    """(tiles, 16, k blocks, 64) words to (tiles, k blocks, 6, lane, 4)"""
    f = _planes(codes, 1)
    x = f[:3] << _U(2)
    for i in range(3):
        x[i] |= (f[3] >> _U(4 - 2 * i)) & _U(0x03030303)
    return _in_fours(x)


def _from_sixes(part: Bytes) -> Words:
    shape = part.shape[:2]
    x = _words(part).reshape(*shape, 6, 32, 4).swapaxes(2, 3).reshape(*shape, 32, 8, 3)
    f = np.zeros((*shape, 32, 8, 4), np.uint32)
    f[..., :3] = (x >> _U(2)) & _U(0x3F3F3F3F)
    for i in range(3):
        f[..., 3] |= (x[..., i] & _U(0x03030303)) << _U(4 - 2 * i)
    return _from_lanes(f.swapaxes(2, 3))


# Nibbles. The file's word has values 4 t ... 4 t + 3 in its low nibbles and those 16 further in the
# high ones; what chooses from a table has the first in the low half and the others above.


def _halves(words: Words) -> Words:
    def gathered(x: Words) -> Words:
        x = x & _U(0x0F0F0F0F)
        x = (x | x >> _U(4)) & _U(0x00FF00FF)
        return (x | x >> _U(8)) & _U(0xFFFF)

    return gathered(words) | gathered(words >> _U(4)) << _U(16)


def _from_halves(words: Words) -> Words:
    def spread(x: Words) -> Words:
        x = (x | x << _U(8)) & _U(0x00FF00FF)
        return (x | x << _U(4)) & _U(0x0F0F0F0F)

    return spread(words & _U(0xFFFF)) | spread(words >> _U(16)) << _U(4)


def _low_and_high(words: Words, axis: int) -> Words:
    """Low nibbles as bytes, then the high ones, along an axis."""
    return np.concatenate([words & _U(0x0F0F0F0F), (words >> _U(4)) & _U(0x0F0F0F0F)], axis=axis)


def _nibbles_of(low: Words, high: Words) -> Words:
    return (low & _U(0x0F0F0F0F)) | (high & _U(0x0F0F0F0F)) << _U(4)


# Blocks of 32


def pack_q8_0(blocks: Bytes) -> Bytes:
    parts = _blocks_of_32(blocks)
    return _joined(_to_lanes(_words(parts[..., 2:])), _to_rows(parts[..., :2]))


def unpack_q8_0(tiles: Bytes) -> Bytes:
    q, d = _split(tiles, 4096, 256)
    words = _from_lanes(_words(q)).view(np.uint8)
    return _whole(_per_block(d), _blocks_of_32(words))


def _pack_4(blocks: Bytes, scales: int, flipped: int) -> Bytes:
    parts = _blocks_of_32(blocks)
    heads = [_to_rows(parts[..., i : i + 2]) for i in range(0, scales, 2)]
    return _joined(_to_lanes(_words(parts[..., scales:]) ^ _U(flipped)), *heads)


def _unpack_4(tiles: Bytes, scales: int, flipped: int) -> Bytes:
    q, *heads = _split(tiles, 2048, *[256] * (scales // 2))
    words = _from_lanes(_words(q)) ^ _U(flipped)
    return _whole(*map(_per_block, heads), _blocks_of_32(words.view(np.uint8)))


def pack_q4_0(blocks: Bytes) -> Bytes:
    return _pack_4(blocks, 2, 0x88888888)


def unpack_q4_0(tiles: Bytes) -> Bytes:
    return _unpack_4(tiles, 2, 0x88888888)


def pack_q4_1(blocks: Bytes) -> Bytes:
    return _pack_4(blocks, 4, 0)


def unpack_q4_1(tiles: Bytes) -> Bytes:
    return _unpack_4(tiles, 4, 0)


def _pack_5(blocks: Bytes, scales: int, flipped: int) -> Bytes:
    parts = _blocks_of_32(blocks)
    heads = [_to_rows(parts[..., i : i + 2]) for i in range(0, scales, 2)]
    fifth = np.unpackbits(parts[..., scales : scales + 4], axis=-1, bitorder="little")
    codes = _low_and_high(_words(parts[..., scales + 4 :]), -1) | _words(fifth) << _U(4)
    return _joined(_to_fives(codes ^ _U(flipped)), *heads)


def _unpack_5(tiles: Bytes, scales: int, flipped: int) -> Bytes:
    q, *heads = _split(tiles, 2560, *[256] * (scales // 2))
    words = _from_fives(q) ^ _U(flipped)
    words = words.reshape(*words.shape[:3], 8, 8)
    fifth = np.packbits((words >> _U(4) & _U(0x01010101)).view(np.uint8), -1, "little")
    low = _nibbles_of(words[..., :4], words[..., 4:]).view(np.uint8)
    return _whole(*map(_per_block, heads), fifth, low)


def pack_q5_0(blocks: Bytes) -> Bytes:
    return _pack_5(blocks, 2, 0x10101010)


def unpack_q5_0(tiles: Bytes) -> Bytes:
    return _unpack_5(tiles, 2, 0x10101010)


def pack_q5_1(blocks: Bytes) -> Bytes:
    return _pack_5(blocks, 4, 0)


def unpack_q5_1(tiles: Bytes) -> Bytes:
    return _unpack_5(tiles, 4, 0)


def _pack_chosen(blocks: Bytes, scales: int) -> Bytes:
    parts = _blocks_of_32(blocks)
    words = _halves(_words(parts[..., scales:]))
    return _joined(_to_lanes(words), _to_rows(parts[..., :scales]))


def _unpack_chosen(tiles: Bytes, scales: int) -> Bytes:
    q, head = _split(tiles, 2048, 128 * scales)
    words = _from_halves(_from_lanes(_words(q))).view(np.uint8)
    return _whole(_per_block(head), _blocks_of_32(words))


def pack_iq4_nl(blocks: Bytes) -> Bytes:
    return _pack_chosen(blocks, 2)


def unpack_iq4_nl(tiles: Bytes) -> Bytes:
    return _unpack_chosen(tiles, 2)


def _rotated(values: Bytes, n: int) -> Bytes:
    """Bytes to the right by n bits; what leaves comes back at the left."""
    right, left = np.uint8(n), np.uint8(8 - n)
    turned: Bytes = values >> right | values << left
    return turned


# MXFP4: exponents are 0 ... 254, rotated by a bit. With 255 a code is 0, 2^127 or beyond float32;
# so it is with 254 as the code that is twice as large, or the largest.

_TWICE = np.array([0, 2, 4, 5, 6, 7, 7, 7, 8, 10, 12, 13, 14, 15, 15, 15], np.uint8)


def _within_254(parts: Bytes) -> Bytes:
    # as float32 of the same values
    above = parts[..., 0] == 255
    if not above.any():
        return parts
    parts, codes = parts.copy(), parts[above, 1:]
    parts[above, 0] = 254
    parts[above, 1:] = _TWICE[codes & 15] | _TWICE[codes >> 4] << 4
    return parts


def pack_mxfp4(blocks: Bytes) -> Bytes:
    parts = _within_254(_blocks_of_32(blocks))
    return _pack_chosen(_whole(_rotated(parts[..., :1], 1), parts[..., 1:]), 1)


def unpack_mxfp4(tiles: Bytes) -> Bytes:
    parts = _blocks_of_32(_unpack_chosen(tiles, 1))
    return _whole(_rotated(parts[..., :1], 7), parts[..., 1:])


# Blocks of 256


def pack_q4_k(blocks: Bytes) -> Bytes:
    return _joined(_to_lanes(_words(blocks[..., 16:])), _to_rows(blocks[..., :16]))


def unpack_q4_k(tiles: Bytes) -> Bytes:
    q, head = _split(tiles, 2048, 256)
    words = _from_lanes(_words(q)).view(np.uint8)
    return np.concatenate([_from_rows(head), words], axis=-1)


def pack_q5_k(blocks: Bytes) -> Bytes:
    shape = blocks.shape[:3]
    fifth = _words(blocks[..., 16:48])[..., None, :] >> np.arange(8, dtype=np.uint32)[:, None]
    low = _low_and_high(_words(blocks[..., 48:]).reshape(*shape, 4, 1, 8), -2)
    codes = low.reshape(*shape, 64) | (fifth & _U(0x01010101)).reshape(*shape, 64) << _U(4)
    return _joined(_to_fives(codes), _to_rows(blocks[..., :16]))


def unpack_q5_k(tiles: Bytes) -> Bytes:
    q, head = _split(tiles, 2560, 256)
    words = _from_fives(q)
    shape = words.shape[:3]
    bits = (words.reshape(*shape, 8, 8) >> _U(4)) & _U(0x01010101)
    fifth = np.bitwise_or.reduce(bits << np.arange(8, dtype=np.uint32)[:, None], axis=-2)
    pairs = words.reshape(*shape, 4, 2, 8)
    low = _nibbles_of(pairs[..., 0, :], pairs[..., 1, :]).reshape(*shape, 32)
    return np.concatenate([_from_rows(head), fifth.view(np.uint8), low.view(np.uint8)], axis=-1)


def pack_q6_k(blocks: Bytes) -> Bytes:
    shape = blocks.shape[:3]
    low = _low_and_high(_words(blocks[..., :128]).reshape(*shape, 2, 1, 16), -2)
    pairs = _words(blocks[..., 128:192]).reshape(*shape, 2, 1, 8)
    high = (pairs >> np.arange(0, 8, 2, dtype=np.uint32)[:, None]) & _U(0x03030303)
    codes = low.reshape(*shape, 64) | high.reshape(*shape, 64) << _U(4)
    heads = _to_rows(blocks[..., 192:208]), _to_rows(blocks[..., 208:])
    return _joined(_to_sixes(codes ^ _U(0x20202020)), *heads)


def unpack_q6_k(tiles: Bytes) -> Bytes:
    q, scales, d = _split(tiles, 3072, 256, 32)
    words = _from_sixes(q) ^ _U(0x20202020)
    shape = words.shape[:3]
    halves = words.reshape(*shape, 2, 2, 16)
    low = _nibbles_of(halves[..., 0, :], halves[..., 1, :]).reshape(*shape, 32)
    pairs = (words.reshape(*shape, 2, 4, 8) >> _U(4)) & _U(0x03030303)
    high = np.bitwise_or.reduce(pairs << np.arange(0, 8, 2, dtype=np.uint32)[:, None], axis=-2)
    parts = low.view(np.uint8), high.reshape(*shape, 16).view(np.uint8)
    return np.concatenate([*parts, _from_rows(scales), _from_rows(d)], axis=-1)


_NIBBLES = np.arange(0, 32, 4, dtype=np.uint32)
_PAIRS = np.arange(0, 16, 2, dtype=np.uint32)


def pack_iq4_xs(blocks: Bytes) -> Bytes:
    head = _words(blocks[..., :8])
    low = (head[..., 1:] >> _NIBBLES) & _U(15)
    high = (head[..., :1] >> _U(16) >> _PAIRS) & _U(3)
    scales = (low | high << _U(4)) ^ _U(32)
    new = np.empty_like(head)
    new[..., 0] = head[..., 0] & _U(0xFFFF)
    new[..., 0] |= _gathered(scales[..., 4:] >> _U(2), _NIBBLES[4:])
    new[..., 1] = _gathered(scales[..., :4] << _U(2) | scales[..., 4:] & _U(3), _NIBBLES[::2])
    return _joined(_to_lanes(_halves(_words(blocks[..., 8:]))), _to_rows(new.view(np.uint8)))


def unpack_iq4_xs(tiles: Bytes) -> Bytes:
    q, rows = _split(tiles, 2048, 128)
    words = _from_halves(_from_lanes(_words(q)))
    new = _words(_from_rows(rows))
    bytes_ = (new[..., 1:] >> _NIBBLES[::2]) & _U(255)
    upper = (new[..., :1] >> _NIBBLES[4:]) & _U(15)
    scales = np.concatenate([bytes_ >> _U(2), upper << _U(2) | bytes_ & _U(3)], axis=-1) ^ _U(32)
    head = np.empty_like(new)
    head[..., 0] = new[..., 0] & _U(0xFFFF)
    head[..., 0] |= _gathered(scales >> _U(4), _PAIRS + _U(16))
    head[..., 1] = _gathered(scales & _U(15), _NIBBLES)
    return np.concatenate([head.view(np.uint8), words.view(np.uint8)], axis=-1)


def _gathered(values: Words, shifts: Words) -> Words:
    gathered: Words = np.bitwise_or.reduce(values << shifts, axis=-1)
    return gathered
