"""Super-blocks of 256 elements: the K-quants, IQ4_XS and the ternary types.

Q2_K, Q3_K and Q6_K keep their scale d at the end of the block, the others at the start.
The order of multiplications is that of ggml, because it decides the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .blocks_32 import IQ4_VALUES, half
from .blocks_plain import Blocks, Floats

_PAIRS = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)


def _two_bits(packed: Blocks) -> Blocks:
    """(n, 32 h) bytes to (n, 128 h) codes: each run of 32 bytes holds 4 x 32 codes."""
    n = len(packed)
    groups = packed.reshape(n, -1, 1, 32) >> _PAIRS
    return (groups & np.uint8(3)).reshape(n, -1)


def _scaled(scales: Floats, q: NDArray[np.generic]) -> Floats:
    """Each of the scales of a block times its own run of elements."""
    n, n_scales = scales.shape
    runs = q.reshape(n, n_scales, -1).astype(np.float32)
    return scales[:, :, None] * runs


def dequantize_q2_k(blocks: Blocks) -> Floats:
    scales = blocks[:, :16]
    d, dmin = half(blocks, 80), half(blocks, 82)
    rows = _scaled(d * (scales & 15).astype(np.float32), _two_bits(blocks[:, 16:80]))
    rows -= (dmin * (scales >> 4).astype(np.float32))[:, :, None]
    return rows.reshape(-1, 256)


def scales_q3_k(packed: Blocks) -> NDArray[np.int8]:
    """The sixteen 6-bit scales of a block, minus 32."""
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    scales: NDArray[np.int8] = (low | (high.reshape(-1, 16) << 4)).astype(np.int8)
    return scales - np.int8(32)


def dequantize_q3_k(blocks: Blocks) -> Floats:
    low = _two_bits(blocks[:, 32:96]).astype(np.int8)
    bits = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None]
    q = low - (((bits & 1) ^ 1) << 2).reshape(-1, 256).astype(np.int8)
    scales = half(blocks, 108) * scales_q3_k(blocks[:, 96:108]).astype(np.float32)
    return _scaled(scales, q).reshape(-1, 256)


def scales_k4(packed: Blocks) -> tuple[Blocks, Blocks]:
    """Eight 6-bit scales and eight 6-bit minima out of twelve bytes."""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], axis=1)
    return scales, minima


def _nibble_rows(packed: Blocks) -> Blocks:
    """(n, 128) bytes to (n, 8, 32) codes: 32 bytes hold one row low and the next one high."""
    rows = packed.reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return (rows & np.uint8(15)).reshape(-1, 8, 32)


def _scale_and_shift(blocks: Blocks, q: Blocks) -> Floats:
    scales, minima = scales_k4(blocks[:, 4:16])
    rows = _scaled(half(blocks, 0) * scales.astype(np.float32), q)
    rows -= (half(blocks, 2) * minima.astype(np.float32))[:, :, None]
    return rows.reshape(-1, 256)


def dequantize_q4_k(blocks: Blocks) -> Floats:
    return _scale_and_shift(blocks, _nibble_rows(blocks[:, 16:]))


def dequantize_q5_k(blocks: Blocks) -> Floats:
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return _scale_and_shift(blocks, _nibble_rows(blocks[:, 48:]) | (fifth << np.uint8(4)))


def dequantize_q6_k(blocks: Blocks) -> Floats:
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    q = (low & 15).reshape(n, 256) | (_two_bits(blocks[:, 128:192]) << 4)
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(scales, q.astype(np.int8) - np.int8(32)).reshape(n, 256)


def dequantize_q8_k(blocks: Blocks) -> Floats:
    """A float32 scale, 256 bytes, and sixteen sums that only mat-muls need."""
    d = np.ascontiguousarray(blocks[:, :4]).view("<f4").astype(np.float32)
    return d * blocks[:, 4:260].view(np.int8).astype(np.float32)


def dequantize_iq4_xs(blocks: Blocks) -> Floats:
    n = len(blocks)
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = blocks[:, 4:8, None] >> np.array([0, 4], np.uint8)
    sub = (low.reshape(n, 8) & 15).astype(np.int16) | ((high & 3) << 4).astype(np.int16)
    scales = half(blocks, 0) * (sub - 32).astype(np.float32)
    packed = blocks[:, 8:].reshape(n, 8, 1, 16) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return _scaled(scales, IQ4_VALUES[packed & 15]).reshape(n, 256)


def _trits(packed: Blocks, n_trits: int) -> Blocks:
    """Base-3 digits, most significant first, of fractions of 256 stored rounded up."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:n_trits, None]
    shifted = packed[:, None, :] * powers  # wraps at 256 on purpose
    return ((shifted.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(packed), -1)


def dequantize_tq1_0(blocks: Blocks) -> Floats:
    """Five trits per byte in runs of 32 and of 16 bytes, then four per byte in the last four."""
    q = np.concatenate(
        [_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4)],
        axis=1,
    )
    return half(blocks, 52) * (q.astype(np.float32) - 1)


def dequantize_tq2_0(blocks: Blocks) -> Floats:
    return half(blocks, 64) * (_two_bits(blocks[:, :64]).astype(np.float32) - 1)
