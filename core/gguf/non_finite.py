"""Finding NaN and infinity in stored weights without computing all of them.

In a quantised tensor only a scale can be NaN or infinite, so only scales are read; a block with a
suspicious scale is then dequantised. Reads everything once: for tools, not for every load.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .blocks_codebook import scale_iq1_m
from .blocks_plain import Blocks
from .quants import BlockFormat
from .tensors import Tensor

Suspects = Callable[[Blocks], NDArray[np.bool_]]  # (n_blocks, block_bytes) -> (n_blocks,)

_CHUNK_BYTES = 1 << 24


def _exponent_full(starts: tuple[int, ...], dtype: str, mask: int) -> Suspects:
    """Blocks where a float at one of `starts` has all the exponent bits of `mask`."""
    size = np.dtype(dtype).itemsize

    def suspects(blocks: Blocks) -> NDArray[np.bool_]:
        found = np.zeros(len(blocks), np.bool_)
        for start in starts:
            bits = np.ascontiguousarray(blocks[:, start : start + size]).view(dtype)[:, 0]
            found |= (bits & bits.dtype.type(mask)) == mask
        return found

    return suspects


def _half_at(*starts: int) -> Suspects:
    return _exponent_full(starts, "<u2", 0x7C00)


def _f64(blocks: Blocks) -> NDArray[np.bool_]:
    """Anything that might be infinite as float32."""
    values = np.ascontiguousarray(blocks).view("<f8")[:, 0]
    small: NDArray[np.bool_] = np.abs(values) < 2.0**127  # false for NaN
    return ~small


def _mxfp4(blocks: Blocks) -> NDArray[np.bool_]:
    """From 253 on, the largest code overflows float32; 255 is NaN in the standard."""
    return blocks[:, 0] >= 253


def _iq1_m(blocks: Blocks) -> NDArray[np.bool_]:
    return ~np.isfinite(scale_iq1_m(blocks)[:, 0])


# Where the scales are. Integers and NVFP4 (its scales have no NaN) are always finite.
SUSPECTS: dict[str, Suspects] = {
    "F32": _exponent_full((0,), "<u4", 0x7F800000),
    "F16": _half_at(0),
    "BF16": _exponent_full((0,), "<u2", 0x7F80),
    "F64": _f64,
    "Q4_0": _half_at(0),
    "Q4_1": _half_at(0, 2),
    "Q5_0": _half_at(0),
    "Q5_1": _half_at(0, 2),
    "Q8_0": _half_at(0),
    "Q8_1": _half_at(0),
    "Q2_K": _half_at(80, 82),
    "Q3_K": _half_at(108),
    "Q4_K": _half_at(0, 2),
    "Q5_K": _half_at(0, 2),
    "Q6_K": _half_at(208),
    "Q8_K": _exponent_full((0,), "<u4", 0x7C000000),  # 2^121 and more, times 128 overflows
    "IQ2_XXS": _half_at(0),
    "IQ2_XS": _half_at(0),
    "IQ3_XXS": _half_at(0),
    "IQ1_S": _half_at(0),
    "IQ4_NL": _half_at(0),
    "IQ3_S": _half_at(0),
    "IQ2_S": _half_at(0),
    "IQ4_XS": _half_at(0),
    "IQ1_M": _iq1_m,
    "TQ1_0": _half_at(52),
    "TQ2_0": _half_at(64),
    "MXFP4": _mxfp4,
    "Q1_0": _half_at(0),
    "Q2_0": _half_at(0),
}


def find_non_finite(tensor: Tensor) -> int | None:
    """Flat index of the first element that is NaN or infinite as float32, or None."""
    suspects = SUSPECTS.get(tensor.format.name)
    if suspects is None:
        return None
    blocks = tensor.data.reshape(-1, tensor.format.block_bytes)
    step = max(1, _CHUNK_BYTES // tensor.format.block_bytes)
    for start in range(0, len(blocks), step):
        chunk = blocks[start : start + step]
        at = _first_bad(chunk, np.flatnonzero(suspects(chunk)), tensor.format)
        if at is not None:
            return start * tensor.format.block_size + at
    return None


def _first_bad(blocks: Blocks, numbers: NDArray[np.intp], fmt: BlockFormat) -> int | None:
    """Dequantises the suspects in growing portions: usually the first one is bad."""
    start, step = 0, 1
    while start < len(numbers):
        portion = numbers[start : start + step]
        with np.errstate(all="ignore"):
            values = fmt.dequantize(np.ascontiguousarray(blocks[portion]))
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            block, element = divmod(int(bad[0]), fmt.block_size)
            return int(portion[block]) * fmt.block_size + element
        start, step = start + step, min(step * 8, 4096)
    return None
