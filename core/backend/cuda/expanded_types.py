"""Types without tiles of their own, as a type that has them: the same numbers, to the bit.

Codebooks become int8 with the scales of their blocks (I8_K). Formats of one or two bits, whose only
scale is a half float, become Q4_0, which has the same scale and more bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....cuda_kernels.repack import FORMATS
from ...gguf.integers import LEVEL_TYPES, to_integers, to_levels
from ...gguf.quants import find_format

logger = logging.getLogger(__name__)
Bytes = NDArray[np.uint8]


class Expansion(NamedTuple):
    to: str  # one of `FORMATS`
    convert: Callable[[Bytes], Bytes]  # (n, bytes of a block) to (m, bytes of a block of `to`)


def _as_bytes_with_levels(name: str) -> Expansion:
    def convert(blocks: Bytes) -> Bytes:
        codes, levels, unit = to_levels(blocks, name)
        parts = codes.view(np.uint8), levels.view(np.uint8), unit[:, None].view(np.uint8)
        return np.concatenate(parts, axis=1)

    return Expansion("I8_K", convert)


def _as_nibbles(name: str, scale_at: int) -> Expansion:
    def convert(blocks: Bytes) -> Bytes:
        codes, _ = to_integers(blocks, name)
        nibbles = (codes + np.int8(8)).view(np.uint8).reshape(len(blocks), -1, 2, 16)
        n = nibbles.shape[1]
        scales = np.repeat(blocks[:, None, scale_at : scale_at + 2], n, axis=1)
        packed = nibbles[:, :, 0] | nibbles[:, :, 1] << 4
        return np.concatenate([scales, packed], axis=-1).reshape(len(blocks) * n, -1)

    return Expansion("Q4_0", convert)


def _without_sums(blocks: Bytes) -> Bytes:
    return np.concatenate([blocks[:, :2], blocks[:, 4:]], axis=1)


EXPANSIONS: Final = MappingProxyType[str, Expansion](
    {name: _as_bytes_with_levels(name) for name in sorted(LEVEL_TYPES)}
    | {
        "TQ1_0": _as_nibbles("TQ1_0", 52),
        "TQ2_0": _as_nibbles("TQ2_0", 64),
        "Q1_0": _as_nibbles("Q1_0", 0),
        "Q2_0": _as_nibbles("Q2_0", 0),
        "Q8_1": Expansion("Q8_0", _without_sums),
    }
)


def tile_type(name: str) -> str | None:
    """As which of `FORMATS` a stored type is kept; None: as none of them."""
    if name in FORMATS:
        return name
    return EXPANSIONS[name].to if name in EXPANSIONS else None


def expand(name: str, rows: Bytes) -> Bytes:
    """Rows of a stored type as rows of its `tile_type`."""
    if name not in EXPANSIONS:
        return rows
    made = EXPANSIONS[name].convert(rows.reshape(-1, find_format(name).block_bytes))
    return made.reshape(len(rows), -1)


def say_if_expanded(name: str, said: set[str]) -> None:
    """Once for each type."""
    if name not in EXPANSIONS or name in said:
        return
    said.add(name)
    to, stored = EXPANSIONS[name].to, find_format(name)
    size = FORMATS[to].block_bytes / FORMATS[to].block_size
    logger.warning(
        "%s tensors have no kernel of their own on CUDA: expanded to %s with exact scales, "
        "%.1f times their size in the file",
        name,
        "int8" if to == "I8_K" else to,
        size * stored.block_size / stored.block_bytes,
    )
