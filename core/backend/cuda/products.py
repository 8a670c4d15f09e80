"""Products of packed rows with whatever a matrix consists of."""

from __future__ import annotations

from dataclasses import dataclass

from ....cuda_kernels import qmm
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.mm_bf16_skinny import mm_skinny
from ....cuda_kernels.packed import PackedRows
from .rooms import Rooms
from .weights import CudaMatrix, Piece


@dataclass(slots=True)
class Product:
    """Not made yet: who reads it may want parts of it elsewhere."""

    a: PackedRows
    w: CudaMatrix
    rows: Array | None = None


class Products:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms, self._launcher = rooms, rooms.launcher

    def rows(self, a: PackedRows, w: CudaMatrix) -> Array:
        y = self._rooms.rows(a.q.shape[0], w.n_out)
        self.write(a, w, y)
        return y

    def write(self, a: PackedRows, w: CudaMatrix, y: Array) -> None:
        for piece in w.pieces:
            self.put(a, piece, y, piece.column)

    def add(self, a: PackedRows, w: CudaMatrix, y: Array) -> None:
        for piece in w.pieces:
            self.put(a, piece, y, piece.column, add=True)

    def put(self, a: PackedRows, piece: Piece, y: Array, column: int, *, add: bool = False) -> None:
        """Into the columns of y from `column` on."""
        weights = piece.weights
        if isinstance(weights, qmm.Matrix):
            space = self._rooms.products(a.q.shape[0], weights.rows)
            qmm.product(self._launcher, a, weights, y, space, column=column, add=add)
        else:
            mm_skinny(self._launcher, a, weights, y, column=column, add=add)

    def put_split(self, a: PackedRows, weights: qmm.Matrix, split: qmm.Split, y: Array) -> None:
        """The first columns to other rows, what is left to y."""
        space = self._rooms.products(a.q.shape[0], weights.rows)
        qmm.split_product(self._launcher, a, weights, y, split, space)
