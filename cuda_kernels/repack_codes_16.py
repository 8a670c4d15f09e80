"""Tiles of the formats whose scales hold for 16 values (`include/qmm_formats_16.cuh`).

I8_K is no format of files: a block is 256 int8 codes, 16 int8 scales and one float32, which is what
formats without a kernel of their own are expanded to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .repack_codes import (
    _from_halves,
    _from_lanes,
    _from_rows,
    _halves,
    _joined,
    _rotated,
    _split,
    _to_lanes,
    _to_rows,
    _words,
)

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
_U = np.uint32
_PAIRS = np.arange(0, 8, 2, dtype=np.uint32)
_BITS = np.arange(8, dtype=np.uint32)


def _any(fields: Words) -> Words:
    """Fields of words, of which no two share a bit, along the last axis."""
    joined: Words = np.bitwise_or.reduce(fields, axis=-1)
    return joined


def _in_fours(words: Words) -> Words:
    """(tiles, k blocks, n, lane) to (tiles, k blocks, n / 4, lane, 4)"""
    tiles, blocks, n, lanes = words.shape
    return words.reshape(tiles, blocks, n // 4, 4, lanes).swapaxes(-1, -2)


def _from_fours(part: Bytes, n: int) -> Words:
    words = _words(part)
    tiles, blocks = words.shape[:2]
    fours = words.reshape(tiles, blocks, n // 4, 32, 4).swapaxes(-1, -2)
    return np.ascontiguousarray(fours).reshape(tiles, blocks, n, 32)


def _pack_twos(packed: Bytes) -> Words:
    """64 bytes of a block, which hold 4 x 32 codes in each 32."""
    pairs = _words(packed).reshape(*packed.shape[:3], 2, 1, 8)
    codes = (pairs >> _PAIRS[:, None]) & _U(0x03030303)
    return _in_fours(_any(_to_lanes(codes) << _PAIRS))


def _unpack_twos(part: Bytes) -> Bytes:
    fragments = (_from_fours(part, 8)[..., None] >> _PAIRS) & _U(0x03030303)
    codes = _from_lanes(fragments)
    fields = codes.reshape(*codes.shape[:3], 2, 4, 8).swapaxes(-1, -2) << _PAIRS
    return _any(fields).reshape(*codes.shape[:3], 16).view(np.uint8)


def pack_q2_k(blocks: Bytes) -> Bytes:
    return _joined(
        _pack_twos(blocks[..., 16:80]), _to_rows(blocks[..., :16]), _to_rows(blocks[..., 80:])
    )


def unpack_q2_k(tiles: Bytes) -> Bytes:
    q, both, units = _split(tiles, 1024, 256, 64)
    return np.concatenate([_from_rows(both), _unpack_twos(q), _from_rows(units)], axis=-1)


def pack_q3_k(blocks: Bytes) -> Bytes:
    tops = _words(blocks[..., :32])[..., None, :] >> _BITS[:, None]
    signs = _to_lanes((tops & _U(0x01010101)) ^ _U(0x01010101))  # (tiles, k blocks, 8, lane, 4)
    of_two = signs.reshape(*signs.shape[:2], 4, 2, 32, 4).swapaxes(3, 4)
    joined = _any(of_two.reshape(*of_two.shape[:4], 8) << _BITS)
    scales = _words(blocks[..., 96:108]).copy()
    scales[..., 2] ^= _U(0xAAAAAAAA)
    rows = _to_rows(scales.view(np.uint8)), _to_rows(blocks[..., 108:])
    return _joined(_pack_twos(blocks[..., 32:96]), _in_fours(joined), *rows)


def unpack_q3_k(tiles: Bytes) -> Bytes:
    q, signs, rows, d = _split(tiles, 1024, 512, 192, 32)
    fields = (_from_fours(signs, 4)[..., None] >> _BITS) & _U(0x01010101)
    apart = fields.reshape(*fields.shape[:4], 2, 4).swapaxes(3, 4)
    codes = _from_lanes(apart.reshape(*fields.shape[:2], 8, 32, 4)) ^ _U(0x01010101)
    tops = _any(codes.reshape(*codes.shape[:3], 8, 8).swapaxes(-1, -2) << _BITS)
    scales = _words(_from_rows(rows)).copy()
    scales[..., 2] ^= _U(0xAAAAAAAA)
    parts = tops.view(np.uint8), _unpack_twos(q), scales.view(np.uint8), _from_rows(d)
    return np.concatenate(parts, axis=-1)


# NVFP4: in each 8 bytes of the file the low nibbles are 8 values, and the high ones the next 8. Of
# a scale the sign means nothing, and 0x7f is 0. Its nibbles change places.


def pack_nvfp4(blocks: Bytes) -> Bytes:
    shape = blocks.shape[:3]
    fours = blocks.reshape(*shape, 4, 36)
    packed = fours[..., 4:].reshape(*shape, 8, 2, 8)
    codes = np.concatenate([packed & 15, packed >> 4], axis=-1)  # (..., 8, 2, 16) in order
    words = _halves(_words(codes[..., 0, :] | codes[..., 1, :] << 4))
    stored = fours[..., :4].reshape(*shape, 16)
    scales = np.where(stored == 0x7F, 0, stored & 0x7F).astype(np.uint8)
    return _joined(_to_lanes(words), _to_rows(_rotated(scales, 4)))


def unpack_nvfp4(tiles: Bytes) -> Bytes:
    q, scales = _split(tiles, 2048, 256)
    packed = _from_halves(_from_lanes(_words(q))).view(np.uint8)
    shape = packed.shape[:3]
    codes = packed.reshape(*shape, 8, 1, 16) >> np.array([[0], [4]], np.uint8) & 15
    quants = (codes[..., :8] | codes[..., 8:] << 4).reshape(*shape, 4, 32)
    heads = _rotated(_from_rows(scales), 4).reshape(*shape, 4, 4)
    return np.concatenate([heads, quants], axis=-1).reshape(*shape, 144)


def pack_i8_k(blocks: Bytes) -> Bytes:
    rows = _to_rows(blocks[..., 256:272]), _to_rows(blocks[..., 272:])
    return _joined(_to_lanes(_words(blocks[..., :256])), *rows)


def unpack_i8_k(tiles: Bytes) -> Bytes:
    q, scales, d = _split(tiles, 4096, 256, 64)
    words = _from_lanes(_words(q)).view(np.uint8)
    return np.concatenate([words, _from_rows(scales), _from_rows(d)], axis=-1)
