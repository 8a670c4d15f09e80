"""Types that store one number per element: floats, bfloat16, integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]  # (n_blocks, block_bytes)
Floats = NDArray[np.float32]  # (n_blocks, block_size)


def read_as(dtype: str) -> Callable[[Blocks], Floats]:
    """A dequantiser for elements that numpy knows; F64 and wide integers are rounded."""
    wanted: np.dtype[Any] = np.dtype(dtype)

    def dequantize(blocks: Blocks) -> Floats:
        return np.ascontiguousarray(blocks).view(wanted).astype(np.float32)

    return dequantize


def dequantize_bf16(blocks: Blocks) -> Floats:
    bits = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return (bits << 16).view(np.float32)
