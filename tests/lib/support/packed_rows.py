"""What packed rows mean, in numpy: include/packed.cuh in other words, and to the same bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from shim.machine import Machine

from nextn.cuda_kernels.packed import BLOCK, PackedRows, packed_shapes, padded_width

Floats = NDArray[np.float32]
STEPS = np.float32(16256)
SMALLEST = np.float32(2.0**-112)
# Byte i of 32 holds value ORDER[i].
ORDER = np.array([16 * (i // 4 % 2) + 4 * (i // 8) + i % 4 for i in range(32)])
WORST = 0.504 / 16256  # of a block's largest value: half a step, and what float32 adds to it


def empty_packed(n_rows: int, width: int) -> PackedRows:
    """Full of what no kernel writes, so that a gap is seen."""
    q, d, s = packed_shapes(n_rows, width)
    return PackedRows(
        np.full(q, 101, np.int8), np.full(d, 1e30, np.float32), np.full(s, 12345, np.int16)
    )


def garbage_packed(machine: Machine, n_rows: int, width: int) -> PackedRows:
    """The same, where the machine's kernels can write it."""
    return put_packed(machine, empty_packed(n_rows, width))


def put_packed(machine: Machine, packed: PackedRows) -> PackedRows:
    return PackedRows(*(machine.put(array) for array in (packed.q, packed.d, packed.s)))


def get_packed(machine: Machine, packed: PackedRows) -> PackedRows:
    return PackedRows(*(machine.get(array) for array in (packed.q, packed.d, packed.s)))


def pack(x: Floats) -> PackedRows:
    """Rows of any width."""
    blocks = _padded(x)
    largest = np.abs(blocks).max(-1)
    usable = np.isfinite(largest) & (largest >= SMALLEST)
    divisor = np.where(usable, largest, np.float32(1))
    per_step = (STEPS / divisor).astype(np.float64)[..., None]
    exact = np.where(usable[..., None], blocks, 0).astype(np.float64) * per_step
    whole = np.rint(exact).astype(np.int32)
    high = (whole + 64) >> 7
    planes = np.stack([high, whole - 128 * high], axis=1)
    d = np.where(usable, largest * (np.float32(1) / STEPS), np.float32(0))
    d[~np.isfinite(largest)] = np.nan
    return PackedRows(_bytes(planes), d, _sums(planes))


def _padded(x: Floats) -> Floats:
    """(rows, blocks, 256)"""
    width = padded_width(x.shape[1])
    padded = np.zeros((len(x), width), np.float32)
    padded[:, : x.shape[1]] = x
    return padded.reshape(len(x), -1, BLOCK)


def _bytes(planes: NDArray[np.int32]) -> NDArray[np.int8]:
    rows = len(planes)
    ordered = planes.reshape(rows, 2, -1, 32)[..., ORDER]
    return np.ascontiguousarray(ordered.reshape(rows, 2, -1), np.int8)


def _sums(planes: NDArray[np.int32]) -> NDArray[np.int16]:
    """(rows, 2, blocks, 24) of (rows, 2, blocks, 256)."""
    by_length = [planes.reshape(*planes.shape[:3], -1, n).sum(-1) for n in (32, 16)]
    return np.concatenate(by_length, axis=-1).astype(np.int16)


def unpack(packed: PackedRows) -> NDArray[np.float64]:
    """The values, padding included."""
    rows, _, width = packed.q.shape
    values = np.empty((rows, 2, width // 32, 32), np.int64)
    values[..., ORDER] = packed.q.reshape(rows, 2, -1, 32)
    steps = (128 * values[:, 0] + values[:, 1]).reshape(rows, -1, BLOCK)
    made: NDArray[np.float64] = steps * packed.d.astype(np.float64)[..., None]
    return made.reshape(rows, width)


def same_packed(a: PackedRows, b: PackedRows) -> bool:
    """To the last bit; NaN is NaN."""
    return (
        np.array_equal(a.q, b.q)
        and np.array_equal(a.d, b.d, equal_nan=True)
        and np.array_equal(a.s, b.s)
    )


def rows_of(packed: PackedRows, rows: slice) -> PackedRows:
    return PackedRows(packed.q[rows], packed.d[rows], packed.s[rows])
