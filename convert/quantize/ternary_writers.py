"""Quantisers of the ternary types (TQ1_0, TQ2_0): -1, 0 or 1 times a scale for 256 elements."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

TERNARY: Final = ("TQ1_0", "TQ2_0")
_BLOCK: Final = 256
_PLACES: Final = 24  # of the border between 0 and 1 that are tried, as shares of the largest
_TINY: Final = np.float32(1e-30)


def quantize_ternary(kind: str, rows: Floats, importance: Floats | None) -> Bytes:
    """Whole rows to the bytes of their blocks; `importance` has a number for each column."""
    blocks = rows.reshape(-1, _BLOCK)
    weights = np.ones(rows.shape[-1], np.float32) if importance is None else importance
    per_row = np.ascontiguousarray(weights, np.float32).reshape(-1, _BLOCK)
    w = per_row[np.arange(len(blocks)) % len(per_row)]
    numbers, scale = _numbers_and_scales(blocks, w)
    codes = (numbers + 1).astype(np.uint8)
    half = scale.astype("<f2")[:, None].view(np.uint8)
    packed = _base_three(codes) if kind == "TQ1_0" else _two_bits(codes)
    return np.concatenate([packed, half], axis=1).reshape(-1)


def _numbers_and_scales(x: Floats, w: Floats) -> tuple[Floats, Floats]:
    """What is kept as -1 or 1 is all that is larger than some border: for each border the best
    scale follows by least squares, and the border with the smallest error wins."""
    sizes = np.abs(x)
    largest = sizes.max(1, keepdims=True)
    best_gain = np.full((len(x), 1), -1.0, np.float32)
    best_border, scale = np.zeros_like(largest), np.zeros_like(largest)
    for share in np.linspace(0.1, 0.98, _PLACES, dtype=np.float32):
        kept = sizes > share * largest
        along = (w * sizes * kept).sum(1, keepdims=True)
        square = np.maximum((w * kept).sum(1, keepdims=True), _TINY)
        gain = along * along / square
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best_border = np.where(better, share * largest, best_border)
        scale = np.where(better, along / square, scale)
    scale = np.minimum(scale, np.float32(65504)).astype(np.float16).astype(np.float32)
    numbers = np.where(sizes > best_border, np.sign(x), 0)
    return numbers.astype(np.float32), scale[:, 0]


def _two_bits(codes: Bytes) -> Bytes:
    fields = codes.reshape(len(codes), 2, 4, 32).astype(np.uint16)
    packed: Bytes = (fields << np.array([0, 2, 4, 6], np.uint16)[:, None]).sum(2, dtype=np.uint8)
    return packed.reshape(len(codes), -1)


def _base_three(codes: Bytes) -> Bytes:
    """Five digits a byte, four in the last four; as a fraction of 243, so that a reader gets the
    first digit by a product with three."""
    parts = []
    for first, end, n_digits in ((0, 160, 5), (160, 240, 5), (240, 256, 4)):
        digits = codes[:, first:end].reshape(len(codes), n_digits, -1).astype(np.uint16)
        factors = np.array([81, 27, 9, 3, 1][:n_digits], np.uint16)[:, None]
        parts.append((digits * factors).sum(1))
    numbers = np.concatenate(parts, axis=1)
    return ((numbers * 256 + 242) // 243).astype(np.uint8)
