"""Blocks of 32 numbers, encoded as ggml's reference does: what a head is usually kept in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..heads.values import Floats

Bytes = NDArray[np.uint8]


def q8_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    steps = _round(blocks * _inverse(scale))
    return _packed(_half(scale), steps.astype(np.int8).view(np.uint8))


def q4_0(blocks: Floats) -> Bytes:
    scale = _signed_extreme(blocks) / np.float32(-8)
    steps = _truncate(blocks * _inverse(scale) + np.float32(8.5), 15)
    return _packed(_half(scale), _nibbles(steps))


def q4_1(blocks: Floats) -> Bytes:
    low, scale = _range(blocks, 15)
    steps = _truncate((blocks - low) * _inverse(scale) + np.float32(0.5), 15)
    return _packed(_half(scale), _half(low), _nibbles(steps))


def q5_0(blocks: Floats) -> Bytes:
    scale = _signed_extreme(blocks) / np.float32(-16)
    steps = _truncate(blocks * _inverse(scale) + np.float32(16.5), 31)
    return _packed(_half(scale), _fifth_bits(steps), _nibbles(steps & np.uint8(15)))


def q5_1(blocks: Floats) -> Bytes:
    low, scale = _range(blocks, 31)
    steps = _truncate((blocks - low) * _inverse(scale) + np.float32(0.5), 31)
    return _packed(_half(scale), _half(low), _fifth_bits(steps), _nibbles(steps & np.uint8(15)))


ENCODERS: Final[Mapping[str, Callable[[Floats], Bytes]]] = {
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
}


def _signed_extreme(blocks: Floats) -> Floats:
    """The number of largest magnitude, the first of them."""
    at = np.abs(blocks).argmax(1)[:, None]
    found: Floats = np.take_along_axis(blocks, at, 1)
    return found


def _range(blocks: Floats, n_steps: int) -> tuple[Floats, Floats]:
    low = blocks.min(1, keepdims=True)
    return low, (blocks.max(1, keepdims=True) - low) / np.float32(n_steps)


def _inverse(scale: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _round(values: Floats) -> Floats:
    """Halves away from zero, as C's roundf."""
    size = np.abs(values)
    down = np.floor(size)
    rounded: Floats = np.sign(values) * (down + np.floor(2 * (size - down)))
    return rounded


def _truncate(values: Floats, most: int) -> Bytes:
    return np.minimum(np.trunc(values).astype(np.int32), most).astype(np.uint8)


def _nibbles(steps: Bytes) -> Bytes:
    return steps[:, :16] | steps[:, 16:] << np.uint8(4)


def _fifth_bits(steps: Bytes) -> Bytes:
    return np.packbits(steps >> np.uint8(4), axis=1, bitorder="little")


def _half(scale: Floats) -> Bytes:
    return scale.astype("<f2").view(np.uint8)


def _packed(*parts: NDArray[Any]) -> Bytes:
    return np.concatenate(parts, axis=1)
