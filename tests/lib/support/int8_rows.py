"""What records of packed activations mean, in numpy: `formats/tile_format.py` in other words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.core.backend.cpu.formats.tile_format import Record
from nextn.core.backend.cpu.simd import Simd

Floats = NDArray[np.float64]
MOST_WEIGHT = 255
PAIR = np.arange(Record.BLOCK) % 4 // 2  # of which pair each element of a block is


def pack(x: NDArray[np.float32], simd: Simd) -> tuple[NDArray[np.uint8], Floats]:
    """Records (blocks, rows, 64) of a group of rows, and the values that they stand for."""
    blocks = x.reshape(len(x), -1, Record.BLOCK)
    weights, unit = _weights(blocks, simd)
    each = weights[..., PAIR]
    q = np.rint(blocks / (each * unit[..., None])).astype(np.int32)
    records = np.zeros((blocks.shape[1], len(x), Record.SIZE), np.uint8)
    records[..., : Record.BLOCK] = q.astype(np.int8).transpose(1, 0, 2).view(np.uint8)
    floats, ints = records.view(np.float32), records.view(np.int32)
    value = q * each
    for word, found in _float_words(value, unit).items():
        floats[..., word] = found.T
    for word, number in _int_words(value, weights, simd).items():
        ints[..., word] = number.T
    return records, (value * unit[..., None].astype(np.float64)).reshape(x.shape)


def pack_split(x: NDArray[np.float32]) -> tuple[NDArray[np.uint8], Floats]:
    """As `pack`, with a scale for each half of a block."""
    blocks = x.reshape(len(x), -1, 2, Record.BLOCK // 2)
    unit = (np.abs(blocks).max(-1) / 127).astype(np.float32)
    q = np.rint(blocks / unit[..., None]).astype(np.int32)
    records = np.zeros((blocks.shape[1], len(x), Record.SIZE), np.uint8)
    records[..., : Record.BLOCK].view(np.int8)[:] = q.reshape(len(x), -1, Record.BLOCK).swapaxes(
        0, 1
    )
    floats, ints = records.view(np.float32), records.view(np.int32)
    sums = q.sum(-1)
    floats[..., Record.MINIMUM // 4] = -(unit * sums).sum(-1).T
    for half, at in enumerate((Record.SCALE, Record.SECOND_SCALE)):
        floats[..., at // 4] = unit[..., half].T
        floats[..., Record.HALF_MINIMA[half] // 4] = -(unit * sums)[..., half].T
        ints[..., Record.HALF_SUMS[half] // 4] = -Record.HALF_ZERO * sums[..., half].T
    return records, (q * unit[..., None].astype(np.float64)).reshape(x.shape)


def unpack(records: NDArray[np.uint8], simd: Simd) -> tuple[Floats, Floats]:
    """Values (..., 32) of records (..., 64), and what one step of each is worth."""
    q = records[..., : Record.BLOCK].view(np.int8).astype(np.int64)
    unit = records.view(np.float32)[..., Record.SCALE // 4].astype(np.float64)
    each: Any = 1
    if simd.weighs_pairs:
        each = records.view(np.int16)[..., Record.WEIGHTS // 2 :][..., :2][..., PAIR]
    values = q * each * unit[..., None]
    return values, np.broadcast_to(each * unit[..., None], values.shape)


def check_words(records: NDArray[np.uint8], simd: Simd) -> None:
    """All that is made of the values is made of these values."""
    values, _ = unpack(records, simd)
    unit = records.view(np.float32)[..., Record.SCALE // 4]
    weights = np.ones((*unit.shape, 2), np.int32)
    if simd.weighs_pairs:
        weights = records.view(np.int16)[..., Record.WEIGHTS // 2 :][..., :2].astype(np.int32)
    whole = np.rint(values / unit[..., None].astype(np.float64)).astype(np.int32)
    for word, number in _int_words(whole, weights, simd).items():
        assert np.array_equal(records.view(np.int32)[..., word], number)
    for word, found in _float_words(whole, unit).items():
        got = records.view(np.float32)[..., word]
        np.testing.assert_allclose(got, found, rtol=1e-6, atol=1e-7)


def _weights(blocks: NDArray[np.float32], simd: Simd) -> tuple[NDArray[np.int32], Any]:
    """(rows, blocks, 2), and what 1 is worth."""
    sizes = np.abs(blocks)
    largest = np.stack([sizes[..., i == PAIR].max(-1) for i in (0, 1)], -1)
    top = largest.max(-1)
    if not simd.weighs_pairs:
        return np.ones(largest.shape, np.int32), (top / 127).astype(np.float32)
    parts = largest * (np.float32(MOST_WEIGHT) / top)[..., None] + np.float32(0.4999)
    weights = np.maximum(np.rint(parts), 1).astype(np.int32)
    return weights, (top / (127 * MOST_WEIGHT)).astype(np.float32)


def _float_words(value: NDArray[np.int32], unit: Any) -> dict[int, Any]:
    found = {Record.SCALE // 4: unit, Record.MINIMUM // 4: -unit * value.sum(-1)}
    for at, half in zip(Record.HALF_MINIMA, _halves(value), strict=True):
        found[at // 4] = -unit * half.sum(-1)
    return found


def _int_words(value: NDArray[np.int32], weights: Any, simd: Simd) -> dict[int, Any]:
    found = {at // 4: -zero * value.sum(-1) for zero, at in Record.SUMS.items()}
    for at, half in zip(Record.HALF_SUMS, _halves(value), strict=True):
        found[at // 4] = -Record.HALF_ZERO * half.sum(-1)
    if simd.weighs_pairs:
        found[Record.WEIGHTS // 4] = weights[..., 0] + (weights[..., 1] << 16)
    return found


def _halves(value: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return value[..., :16], value[..., 16:]
