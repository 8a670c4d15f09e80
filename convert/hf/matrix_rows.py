"""Tensors of a checkpoint as rows of numbers, and output tensors made of them slab by slab.

An output tensor is rows of stored tensors in some order, one under the other. Rows are read on
demand, and pages that were read are released.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from ..checkpoint import StoredTensor
from ..checkpoint.byte_source import LocalSource
from ..checkpoint.safetensors import Array, Floats

SLAB_BYTES: Final = 1 << 24  # as float32; a few of that size are alive at a time
Order = NDArray[np.intp]


class Change(Enum):
    """A change of the numbers themselves."""

    NONE = "none"
    PLUS_ONE = "plus one"  # norm weights that are stored minus one
    NEG_EXP = "minus exp"  # A_log


class Float8Scales(Struct, frozen=True):
    """Float8 weights: each block of numbers has a factor."""

    tensor: StoredTensor
    n_rows: int  # of one matrix; experts may be stacked
    block: tuple[int, int]

    def apply(self, values: Floats, first: int) -> None:
        """Scale `values` in place, which are rows from `first` on."""
        width = self.tensor.shape[-1] if self.tensor.shape else 1
        flat = self.tensor.floats().reshape(-1, width)
        per_matrix = -(-self.n_rows // self.block[0])
        matrix, row = np.divmod(np.arange(first, first + len(values)), self.n_rows)
        picked = flat[matrix * per_matrix + row // self.block[0]]
        step = self.block[1]
        for column in range(picked.shape[1]):
            values[:, column * step : (column + 1) * step] *= picked[:, column : column + 1]


class StoredMatrix(Struct, frozen=True):
    """A stored tensor seen as rows: all axes but the last are one; a vector is a column."""

    tensor: StoredTensor
    scales: Float8Scales | None = None

    @property
    def n_rows(self) -> int:
        shape = self.tensor.shape
        return shape[0] if len(shape) == 1 else math.prod(shape[:-1])

    @property
    def n_columns(self) -> int:
        return self.tensor.shape[-1] if len(self.tensor.shape) > 1 else 1

    def raw(self, first: int, last: int) -> Array:
        """As they are stored."""
        values = replace(self.tensor, shape=(self.n_rows, self.n_columns)).raw(first, last)
        self._release(first, last)
        return values

    def floats(self, first: int, last: int) -> Floats:
        flat = replace(self.tensor, shape=(self.n_rows, self.n_columns))
        values = flat.floats(first, last)
        self._release(first, last)
        if self.scales is not None:
            self.scales.apply(values, first)
        return values

    def _release(self, first: int, last: int) -> None:
        """Let the system take back pages of a mapped file."""
        if type(self.tensor.source) is not LocalSource:  # a second read would fetch it again
            return
        size = self.tensor.n_bytes // max(1, self.n_rows)
        start, stop = self.tensor.start + first * size, self.tensor.start + last * size
        view = self.tensor.source.read(start, stop)
        mapped = view.obj
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            start = start // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)


class MatrixRows(Struct, frozen=True):
    """Some rows of a matrix: a range, or any order."""

    matrix: StoredMatrix
    order: range | Order

    @classmethod
    def all(cls, matrix: StoredMatrix) -> MatrixRows:
        return cls(matrix, range(matrix.n_rows))

    def __len__(self) -> int:
        return len(self.order)

    def floats(self, first: int, last: int) -> Floats:
        return self.read(self.matrix.floats, first, last)

    def read(self, rows: Callable[[int, int], Array], first: int, last: int) -> Array:
        """`rows` reads some of the matrix."""
        order = self.order[first:last]
        if isinstance(order, range):
            return rows(order.start, order.stop)
        low, high = int(order.min()), int(order.max()) + 1
        if high - low <= 2 * len(order):  # a permutation of neighbours
            return rows(low, high)[order - low]
        runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
        return np.concatenate([rows(int(r[0]), int(r[-1]) + 1) for r in runs])


class OutputTensor(Struct, frozen=True):
    """A tensor of the GGUF file, and how its numbers are made."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[MatrixRows, ...]
    change: Change = Change.NONE
    columns: Order | None = None
    constant: Floats | None = None  # made from the configuration, not from tensors
    is_turned: bool = False  # rows of each part are columns here
    integers: NDArray[np.int64] | None = None  # instead of floats
    factors: tuple[Any, ...] = ()  # of one part: one after the other, for all rows or for each

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def source(self) -> str:
        """The stored tensor it comes from, the first if there are several."""
        return self.parts[0].matrix.tensor.name if self.parts else "config.json"

    @property
    def dtypes(self) -> set[str]:
        return {part.matrix.tensor.dtype for part in self.parts}

    def slabs(self) -> Iterator[tuple[str, Floats]]:
        """Whole rows as float32 in order, with the name of the tensor they come from."""
        if self.constant is not None:
            yield self.source, self.constant.reshape(1, -1)
        for part in self.parts:
            if self.is_turned:  # a matrix of one head, or of one expert
                values = self._changed(part.floats(0, len(part))).T
                yield part.matrix.tensor.name, np.ascontiguousarray(values)
                continue
            n_columns = part.matrix.n_columns
            step = max(1, SLAB_BYTES // max(1, 4 * n_columns))
            for first in range(0, len(part), step):
                values = part.floats(first, min(first + step, len(part)))
                yield part.matrix.tensor.name, self._multiplied(self._changed(values), first)

    def _multiplied(self, values: Floats, first: int) -> Floats:
        """Rows from `first` on."""
        for factor in self.factors:
            of_rows = np.broadcast_to(np.float32(factor), self.shape[:1])
            values = values * of_rows[first : first + len(values), None]
        return values

    def _changed(self, values: Floats) -> Floats:
        if self.columns is not None:
            values = values[:, self.columns]
        if self.change is Change.PLUS_ONE:
            values = values + np.float32(1)
        elif self.change is Change.NEG_EXP:
            with np.errstate(over="ignore"):  # infinity is found by the check of all numbers
                values = -np.exp(values)
        return values
