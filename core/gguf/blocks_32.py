"""Formats with small blocks: 32 elements, and the newer ones of 64 and 128.

In every 32-element nibble format byte j holds element j in its low half and j + 16 in its high
half. Layouts: ggml/src/ggml-common.h of llama.cpp.
"""

from __future__ import annotations

import numpy as np

from .blocks_plain import Blocks, Floats

IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
# Twice the E2M1 values, so that they are integers; the scales below are halved for it.
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def half(blocks: Blocks, start: int) -> Floats:
    """The float16 at byte `start` of every block, as a column."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def nibbles(packed: Blocks) -> Blocks:
    """All low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def fifth_bits(packed: Blocks) -> Blocks:
    """32 bits per block, shifted to where a five-bit number has its top bit."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def dequantize_q4_0(blocks: Blocks) -> Floats:
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def dequantize_q4_1(blocks: Blocks) -> Floats:
    return half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def dequantize_q5_0(blocks: Blocks) -> Floats:
    q = nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])
    return half(blocks, 0) * (q.astype(np.float32) - 16)


def dequantize_q5_1(blocks: Blocks) -> Floats:
    q = nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])
    return half(blocks, 0) * q.astype(np.float32) + half(blocks, 2)


def dequantize_q8_0(blocks: Blocks) -> Floats:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def dequantize_q8_1(blocks: Blocks) -> Floats:
    """As Q8_0; the second half-float is the block's sum, which only mat-muls need."""
    return half(blocks, 0) * blocks[:, 4:].view(np.int8).astype(np.float32)


def dequantize_iq4_nl(blocks: Blocks) -> Floats:
    return half(blocks, 0) * IQ4_VALUES[nibbles(blocks[:, 2:])].astype(np.float32)


def e8m0_half(exponents: Blocks) -> Floats:
    """2^(e - 128), exact: half of the E8M0 scale. e = 0 and 1 are subnormal float32."""
    small = np.uint32(0x00200000) << exponents.astype(np.uint32)
    normal = (exponents.astype(np.uint32) - 1) << 23
    return np.where(exponents < 2, small, normal).view(np.float32)


def dequantize_mxfp4(blocks: Blocks) -> Floats:
    return e8m0_half(blocks[:, :1]) * FP4_VALUES[nibbles(blocks[:, 1:])].astype(np.float32)


def ue4m3_half(codes: Blocks) -> Floats:
    """Half of an unsigned E4M3 (bias 7). The sign bit is ignored; 0 and the NaN code give 0."""
    exponent = (codes >> 3).astype(np.int32) & 15
    mantissa = (codes & 7).astype(np.float32)
    normal = np.ldexp(mantissa + 8, exponent - 11)
    value = np.where(exponent == 0, np.ldexp(mantissa, -10), normal)
    return np.where((codes == 0) | (codes == 0x7F), np.float32(0), value).astype(np.float32)


def dequantize_nvfp4(blocks: Blocks) -> Floats:
    """Without the tensor's own `.scale`, which is a tensor beside it."""
    n = len(blocks)
    packed = blocks[:, 4:].reshape(n, 4, 8)
    q = np.concatenate([packed & 15, packed >> 4], axis=2)
    scale = ue4m3_half(blocks[:, :4]).reshape(n, 4, 1)
    values: Floats = scale * FP4_VALUES[q].astype(np.float32)
    return values.reshape(n, 64)


def dequantize_q1_0(blocks: Blocks) -> Floats:
    """One sign bit per element: set means +d, clear means -d."""
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return half(blocks, 0) * (bits.astype(np.float32) * 2 - 1)


def dequantize_q2_0(blocks: Blocks) -> Floats:
    """Four elements per byte, lowest bits first; codes 0..3 mean -1, 0, 1, 2."""
    packed = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8)
    return half(blocks, 0) * ((packed.reshape(len(blocks), 64) & 3).astype(np.float32) - 1)
