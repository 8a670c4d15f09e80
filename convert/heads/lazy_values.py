"""Numbers that are computed while they are written: no tensor of a head is ever held whole
unless it is small or has to be turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..checkpoint import StoredTensor

Floats = NDArray[np.float32]
# Read at once. Memory of this size is used again for the next; more is given back to the system
# every time, which then has to clear it.
SLAB_BYTES: Final = 1 << 24


class LazyValues(Struct, frozen=True):
    """`pieces` gives them in order, some whole rows of the last axis at a time."""

    shape: tuple[int, ...]
    dtype: str  # safetensors' word for how the checkpoint has them
    pieces: Callable[[], Iterator[Floats]]

    def whole(self) -> Floats:
        parts = [piece.reshape(-1) for piece in self.pieces()]
        flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return flat.reshape(self.shape)


def stored(tensor: StoredTensor) -> LazyValues:
    def pieces() -> Iterator[Floats]:
        for first, last in tensor.slabs(SLAB_BYTES):
            yield tensor.floats(first, last)

    return LazyValues(tensor.shape or (1,), tensor.dtype, pieces)


def plus_one(values: LazyValues) -> LazyValues:
    """Norm weights of models that compute x * (1 + w)."""
    return LazyValues(values.shape, values.dtype, lambda: (piece + 1 for piece in values.pieces()))


def stacked(parts: Sequence[LazyValues]) -> LazyValues:
    """One behind the other along a new first axis."""
    return LazyValues((len(parts), *parts[0].shape), parts[0].dtype, _chain(parts))


def joined(parts: Sequence[LazyValues]) -> LazyValues:
    """One below the other along the first axis."""
    rows = sum(part.shape[0] for part in parts)
    return LazyValues((rows, *parts[0].shape[1:]), parts[0].dtype, _chain(parts))


def side_by_side(left: LazyValues, right: LazyValues) -> LazyValues:
    """Rows of the one followed by rows of the other."""

    def pieces() -> Iterator[Floats]:
        for pair in zip(left.pieces(), right.pieces(), strict=True):
            yield np.concatenate(pair, axis=1)

    rows, columns = left.shape
    return LazyValues((rows, columns + right.shape[1]), left.dtype, pieces)


def scaled(values: LazyValues, factor: float) -> LazyValues:
    wide = np.float32(factor)
    return LazyValues(values.shape, "F32", lambda: (piece * wide for piece in values.pieces()))


def turned(
    values: LazyValues, shape: tuple[int, ...], turn: Callable[[Floats], Floats]
) -> LazyValues:
    """Through a function of all numbers at once."""

    def pieces() -> Iterator[Floats]:
        yield np.ascontiguousarray(turn(values.whole()), np.float32)

    return LazyValues(shape, values.dtype, pieces)


def slab(tensor: StoredTensor, index: int, first: int, last: int) -> LazyValues:
    """Rows first..last of the matrix at `index` of a stack of them."""

    def pieces() -> Iterator[Floats]:
        yield tensor.floats(index, index + 1)[0, first:last]

    return LazyValues((last - first, *tensor.shape[2:]), tensor.dtype, pieces)


def _chain(parts: Sequence[LazyValues]) -> Callable[[], Iterator[Floats]]:
    def pieces() -> Iterator[Floats]:
        for part in parts:
            yield from part.pieces()

    return pieces
