"""Packed rows (`include/packed.cuh`) as arrays."""

from __future__ import annotations

from dataclasses import dataclass

from .kernel import Argument, Array
from .shapes import require_shape

BLOCK = 256  # values that share a scale
SUMS = 24  # of a block and plane: 8 of 32 values, 16 of 16


@dataclass(frozen=True, slots=True)
class PackedRows:
    q: Array  # int8 (rows, 2, width)
    d: Array  # float32 (rows, width / 256)
    s: Array  # int16 (rows, 2, width / 256, 24)

    @property
    def width(self) -> int:
        return int(self.q.shape[2])

    @property
    def arguments(self) -> list[Argument]:
        """As kernels take them."""
        return [self.q, self.d, self.s, self.width]


def padded_width(width: int) -> int:
    return -(-width // BLOCK) * BLOCK


def packed_shapes(rows: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Of q, d and s, for rows of so many values before padding."""
    blocks = padded_width(width) // BLOCK
    return (rows, 2, blocks * BLOCK), (rows, blocks), (rows, 2, blocks, SUMS)


def require_packed(packed: PackedRows, n_rows: int, width: int) -> None:
    """Rows of so many values before padding."""
    shapes = packed_shapes(n_rows, width)
    arrays = (("q", packed.q), ("d", packed.d), ("s", packed.s))
    for (name, array), shape in zip(arrays, shapes, strict=True):
        require_shape(f"{name} of packed rows", array, shape)
