"""Cells of latent attention: keys whose beginning is their value, kept once, as half floats.

A cell is a row, filled up with zeros to whole vectors, as [cell][element]: scores are sums across
lanes, and values are read in place. All heads share a cell; a few of them at a time meet it in
registers, all of them while it is in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..emit import LANES, Emitter, Value
from ..formats.unpack import load_half
from .cells import Array, Keys, Queries
from .cells_half import HalfRows, HalfValues
from .mathematics import F32X16

CELLS_AT_ONCE = 2  # that a query meets while it is in a register


def padded_width(width: int) -> int:
    """Of a cell in memory."""
    return -(-width // LANES) * LANES


class LatentKeys(HalfRows, Keys):
    """`dim` is a whole number of vectors."""

    def score(
        self, e: Emitter, queries: Queries, page: Value, cell: Value, n: int, ahead: Value
    ) -> list[list[Value]]:
        made = []
        for i in range(n):
            scores = e.scratch(F32X16, len(queries))
            with e.range(0, LANES, CELLS_AT_ONCE) as lane:
                self._score_cells(
                    e, queries, page, cell + lane + LANES * i, ahead, scores + lane * 4
                )
            made.append([e.load(F32X16, scores + 4 * LANES * j) for j in range(len(queries))])
        return made

    def _score_cells(
        self, e: Emitter, queries: Queries, page: Value, cell: Value, ahead: Value, to: Value
    ) -> None:
        row_bytes, start = 2 * self.dim, cell * (2 * self.dim)
        zero = e.const(F32X16, 0.0)
        sums = [[e.variable(zero) for _ in queries.offsets] for _ in range(CELLS_AT_ONCE)]
        with e.range(0, self.dim, LANES) as d:
            places = [start + row_bytes * k + d * 2 for k in range(CELLS_AT_ONCE)]
            for place in places:
                e.prefetch(ahead + place)
            keys = [load_half(e, page + place) for place in places]
            for j, offset in enumerate(queries.offsets):
                x = e.load(F32X16, queries.base + offset + d * 4)
                for key, row in zip(keys, sums, strict=True):
                    row[j].set(e.fma(key, x, row[j].get()))
        for k, row in enumerate(sums):
            for j, total in enumerate(row):
                e.store(e.sum_lanes(total.get()), to + (4 * LANES * j + 4 * k))


class LatentValues(HalfValues):
    """The first `dim` elements of cells that are `row_width` wide, which are there as keys."""

    def __init__(self, page_len: int, dim: int, row_width: int) -> None:
        super().__init__(page_len, dim)
        self._row_width = row_width

    @property
    def row_width(self) -> int:
        return self._row_width

    @property
    def head_bytes(self) -> int:
        """Beside the keys'."""
        return 0

    def array_shape(self) -> tuple[Any, tuple[int, ...]]:
        return np.uint16, (0,)

    def clear(self, pages: Array, cell: int) -> None:
        """Nothing is kept."""
