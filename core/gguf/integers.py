"""Formats without a mat-mul kernel of their own, as int8 and one float32 scale per 16 elements.

`float32(integer) * scale` has the bits that `quants.dequantize` gives, for every type here and
all bytes (a NaN stays some NaN): the split moves only signs and powers of two, which rounding
does not affect.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import blocks_codebook as codebook
from .blocks_32 import half, ue4m3_half
from .blocks_plain import Blocks, Floats
from .quants import find_format

RUN: Final = 16  # elements per scale
_CHUNK_ELEMENTS: Final = 1 << 18  # as in `quants`: temporaries stay near 10 MB
_HALF_ONE: Final = b"\x00\x3c"


def _float_scale(blocks: Blocks) -> Floats:
    return np.ascontiguousarray(blocks[:, :4]).view("<f4").astype(np.float32)


def _with_unit_scale(
    name: str, start: int, unit: bytes, scales: Callable[[Blocks], Floats]
) -> Callable[[Blocks], codebook.Split]:
    """For formats that are scale times integer: dequantised with a scale of 1, the floats are
    the integers. `unit` is how a scale of 1 is spelled at byte `start`."""

    def split(blocks: Blocks) -> codebook.Split:
        plain = blocks.copy()
        plain[:, start : start + len(unit)] = np.frombuffer(unit, np.uint8)
        return find_format(name).dequantize(plain).astype(np.int8), scales(blocks)

    return split


def _with_half(name: str, start: int) -> Callable[[Blocks], codebook.Split]:
    return _with_unit_scale(name, start, _HALF_ONE, lambda blocks: half(blocks, start))


_SPLITS: Final = MappingProxyType[str, Callable[[Blocks], codebook.Split]](
    {
        "IQ1_S": codebook.split_iq1_s,
        "IQ1_M": codebook.split_iq1_m,
        "IQ2_XXS": codebook.split_iq2_xxs,
        "IQ2_XS": codebook.split_iq2_xs,
        "IQ2_S": codebook.split_iq2_s,
        "IQ3_XXS": codebook.split_iq3_xxs,
        "IQ3_S": codebook.split_iq3_s,
        "TQ1_0": _with_half("TQ1_0", 52),
        "TQ2_0": _with_half("TQ2_0", 64),
        # Half of the E4M3 number 0x40, which is 2, beside twice the E2M1 values.
        "NVFP4": _with_unit_scale("NVFP4", 0, b"\x40" * 4, lambda rows: ue4m3_half(rows[:, :4])),
        "Q1_0": _with_half("Q1_0", 0),
        "Q2_0": _with_half("Q2_0", 0),
        "Q8_1": _with_half("Q8_1", 0),
        "Q8_K": _with_unit_scale("Q8_K", 0, np.float32(1).tobytes(), _float_scale),
    }
)

INTEGER_TYPES: Final = frozenset(_SPLITS)


def _parts_of_half(part: float) -> Callable[[Blocks], Floats]:
    return lambda blocks: half(blocks, 0) * np.float32(part)


# What all scales of a block of 256 are small multiples of, where it is one number.
_UNITS: Final = MappingProxyType[str, Callable[[Blocks], Floats]](
    {
        "IQ1_S": _parts_of_half(0.125),
        "IQ1_M": lambda blocks: codebook.scale_iq1_m(blocks) * np.float32(0.125),
        "IQ2_XXS": _parts_of_half(0.125),
        "IQ2_XS": _parts_of_half(0.125),
        "IQ2_S": _parts_of_half(0.125),
        "IQ3_XXS": _parts_of_half(0.25),
        "IQ3_S": _parts_of_half(1.0),
        "Q8_K": _float_scale,
    }
)

LEVEL_TYPES: Final = frozenset(_UNITS)


def to_integers(blocks: Blocks, type_name: str) -> tuple[NDArray[np.int8], Floats]:
    """(n, block_bytes) to fresh (n, block_size) integers and (n, block_size / 16) scales.

    `type_name` is one of `INTEGER_TYPES`; another one is the caller's mistake: KeyError.
    """
    split, fmt = _SPLITS[type_name], find_format(type_name)
    if blocks.ndim != 2 or blocks.shape[1] != fmt.block_bytes:
        raise ValueError(f"{type_name} blocks cannot have shape {blocks.shape}")
    integers = np.empty((len(blocks), fmt.block_size), np.int8)
    scales = np.empty((len(blocks), fmt.block_size // RUN), np.float32)
    step = max(1, _CHUNK_ELEMENTS // fmt.block_size)
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            part = slice(start, start + step)
            integers[part], few = split(blocks[part])
            scales[part] = np.repeat(few, scales.shape[1] // few.shape[1], axis=1)
    return integers, scales


def to_levels(blocks: Blocks, type_name: str) -> tuple[NDArray[np.int8], NDArray[np.int8], Floats]:
    """As `to_integers`, with each scale as an int8 (n, 16) times one float32 of its block (n,).

    `type_name` is one of `LEVEL_TYPES`; the products are exact, so the same equality holds.
    """
    integers, scales = to_integers(blocks, type_name)
    with np.errstate(all="ignore"):
        unit = _UNITS[type_name](blocks)
        levels = scales / unit
    # 0, infinite or NaN: so is every scale of the block.
    levels[~np.isfinite(levels)] = 1
    return integers, levels.astype(np.int8), unit[:, 0].astype(np.float32)
