"""Products of packed rows with whatever a matrix consists of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ....cuda_kernels import qmm
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.mm_bf16_skinny import mm_skinny
from ....cuda_kernels.packed import PackedRows
from ....cuda_kernels.qmm_pair import Half, product_of_two
from .step_memory import StepMemory
from .weights import CudaMatrix, ProductPart


class Product(Struct):
    """Not made yet: its reader may place parts of it elsewhere."""

    a: PackedRows
    w: CudaMatrix
    rows: Array | None = None


class Products:
    def __init__(self, memory: StepMemory) -> None:
        self._memory, self._launcher = memory, memory.launcher

    def rows(self, a: PackedRows, w: CudaMatrix) -> Array:
        y = self._memory.rows(a.q.shape[0], w.n_out)
        self.write(a, w, y)
        return y

    def write(self, a: PackedRows, w: CudaMatrix, y: Array, *, add: bool = False) -> None:
        self._put_all(a, w.pieces, y, add=add)

    def write_split(self, a: PackedRows, w: CudaMatrix, split: qmm.Split, y: Array) -> None:
        """The first columns to other rows, what is left to y. They are of the first piece."""
        pieces = [ProductPart(piece.column - split.columns, piece.weights) for piece in w.pieces]
        self._put_all(a, pieces, y, split=split)

    def _put_all(
        self,
        a: PackedRows,
        pieces: Sequence[ProductPart],
        y: Array,
        *,
        add: bool = False,
        split: qmm.Split | None = None,
    ) -> None:
        for group in _launches(pieces):
            if len(group) == 2:
                first, second = self._halves(a, group, split)
                product_of_two(self._launcher, a, first, second, y, add=add, split=split)
            else:
                self._put(a, group[0], y, add, split)
            split = None

    def _halves(
        self, a: PackedRows, group: Sequence[ProductPart], split: qmm.Split | None
    ) -> Iterator[Half]:
        for i, (column, weights) in enumerate(group):
            assert isinstance(weights, qmm.Matrix), "so it was chosen"
            space = self._memory.products(a.q.shape[0], weights.rows, beside=i > 0)
            yield Half(weights, 0 if split and not i else column, space)

    def _put(
        self, a: PackedRows, piece: ProductPart, y: Array, add: bool, split: qmm.Split | None
    ) -> None:
        column, weights = piece
        if not isinstance(weights, qmm.Matrix):
            mm_skinny(self._launcher, a, weights, y, column=column, add=add)
            return
        space = self._memory.products(a.q.shape[0], weights.rows)
        if split:
            qmm.split_product(self._launcher, a, weights, y, split, space)
        else:
            qmm.product(self._launcher, a, weights, y, space, column=column, add=add)


def _launches(pieces: Sequence[ProductPart]) -> Iterator[Sequence[ProductPart]]:
    """Two neighbours in tiles are one launch: they have different types, or they were one piece."""
    i = 0
    while i < len(pieces):
        both = pieces[i : i + 2]
        n = 2 if len(both) == 2 and all(isinstance(p.weights, qmm.Matrix) for p in both) else 1
        yield pieces[i : i + n]
        i += n
