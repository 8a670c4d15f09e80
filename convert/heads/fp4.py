"""FP4 as DeepSeek V4 stores its experts: two numbers in a byte, the first in its low half, and a
power of two for every 32 of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ..checkpoint import StoredTensor
from .values import SLAB_BYTES, Floats, Values

_BLOCK: Final = 32
_POSITIVE: Final = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
_NUMBERS: Final = np.array([*_POSITIVE, *(-x for x in _POSITIVE)], np.float32)


def is_fp4(tensor: StoredTensor, scale: StoredTensor) -> bool:
    """By its types and shapes, which nothing else has."""
    if tensor.dtype not in ("I8", "U8") or len(tensor.shape) != 2 or scale.dtype != "F8_E8M0":
        return False
    rows, n_bytes = tensor.shape
    return 2 * n_bytes % _BLOCK == 0 and scale.shape == (rows, 2 * n_bytes // _BLOCK)


def fp4_values(tensor: StoredTensor, scale: StoredTensor) -> Values:
    def pieces() -> Iterator[Floats]:
        for first, last in tensor.slabs(SLAB_BYTES // 2):
            packed = tensor.raw(first, last).view(np.uint8)
            numbers = _NUMBERS[np.stack([packed & 15, packed >> 4], -1)]
            blocks = (
                numbers.reshape(last - first, -1, _BLOCK) * scale.floats(first, last)[..., None]
            )
            yield blocks.reshape(last - first, -1)

    rows, n_bytes = tensor.shape
    return Values((rows, 2 * n_bytes), "BF16", pieces)
