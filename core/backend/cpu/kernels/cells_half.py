"""Keys and values as half floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..emit import F32, LANES, Emitter, Value
from ..formats.unpack import load_half
from .cells import Array, Cells, Keys, Queries, Sums, Values, columns_of
from .mathematics import F32X16

LINE = 64


class HalfKeys(Keys):
    @property
    def head_bytes(self) -> int:
        return 2 * self.page_len * self.dim

    def array_shape(self) -> tuple[Any, tuple[int, ...]]:
        return np.uint16, (self.page_len // LANES, self.dim, LANES)

    def clear(self, pages: Array, cell: int) -> None:
        pages[:, :, cell // LANES, :, cell % LANES] = 0

    def store(self, e: Emitter, source: Value, head: Value, inside: Value) -> None:
        """Scatter: element d of 16 neighbouring cells lies together."""
        base = head + inside // LANES * (2 * LANES * self.dim) + inside % LANES * 2
        if self.dim % LANES:
            with e.range(0, self.dim) as d:
                half = e.simd.to_half(e, e.splat(e.load(F32, source + d * 4)))
                e.store(e.lane(half, 0), base + d * (2 * LANES), 2)
            return
        with e.range(0, self.dim, LANES) as d:
            halves = e.simd.to_half(e, e.load(F32X16, source + d * 4))
            for lane in range(LANES):
                e.store(e.lane(halves, lane), base + (d + lane) * (2 * LANES), 2)

    def score(
        self, e: Emitter, queries: Queries, page: Value, cell: Value, n: int, ahead: Value
    ) -> list[list[Value]]:
        vector_bytes, start = 2 * LANES * self.dim, cell * (2 * self.dim)
        sums = [[e.variable(e.const(F32X16, 0.0)) for _ in queries.offsets] for _ in range(n)]
        step = 2 if self.dim % 2 == 0 else 1
        with e.range(0, self.dim, step) as d:
            at = start + d * (2 * LANES)
            for i in range(n):
                e.prefetch(ahead + at + i * vector_bytes)
            for odd in range(step):
                place = page + at + 2 * LANES * odd
                keys = [load_half(e, place + i * vector_bytes) for i in range(n)]
                for j, offset in enumerate(queries.offsets):
                    x = e.splat(e.load(F32, queries.base + offset + (d + odd) * 4))
                    for key, row in zip(keys, sums, strict=True):
                        row[j].set(e.fma(key, x, row[j].get()))
        return [[total.get() for total in row] for row in sums]


class HalfRows(Cells):
    """A cell is a row of half floats."""

    @property
    def head_bytes(self) -> int:
        return 2 * self.page_len * self.dim

    def array_shape(self) -> tuple[Any, tuple[int, ...]]:
        return np.uint16, (self.page_len, self.dim)

    def clear(self, pages: Array, cell: int) -> None:
        pages[:, :, cell] = 0

    def store(self, e: Emitter, source: Value, head: Value, inside: Value) -> None:
        target, whole = head + inside * (2 * self.dim), self.dim - self.dim % LANES
        with e.range(0, whole, LANES) as d:
            e.store(e.simd.to_half(e, e.load(F32X16, source + d * 4)), target + d * 2, 2)
        with e.range(whole, self.dim) as d:
            half = e.simd.to_half(e, e.splat(e.load(F32, source + d * 4)))
            e.store(e.lane(half, 0), target + d * 2, 2)


class HalfValues(HalfRows, Values):
    @property
    def row_width(self) -> int:
        """Elements from cell to cell."""
        return self.dim

    def gather(
        self, e: Emitter, s: Sums, page: Value, cells: tuple[Value, Value], ahead: Value
    ) -> None:
        n, at_once = s.bundle(e, 4)  # weights and values are loaded equally often
        if self.dim % (LANES * at_once) == 0:
            with e.range(0, self.dim, LANES * at_once) as first, s.bundles(e, n) as some:
                columns = [first + LANES * j for j in range(at_once)]
                self._gather(e, some, page, cells, ahead, columns, first * 4)
            return
        starts = columns_of(self.dim)
        for j in range(0, len(starts), at_once):
            columns = [e.index(start) for start in starts[j : j + at_once]]
            with s.bundles(e, n) as some:
                self._gather(e, some, page, cells, ahead, columns, e.index(4 * LANES * j))

    def _gather(
        self, e: Emitter, s: Sums, page: Value, cells: tuple[Value, Value], ahead: Value,
        columns: list[Value], first_sum: Value,
    ) -> None:  # fmt: skip
        places = [s.sums + first_sum + s.sum_stride * i for i in range(s.n)]
        sums = [
            [e.variable(e.load(F32X16, place + 64 * j)) for j in range(len(columns))]
            for place in places
        ]
        with e.range(*cells) as cell:
            row = cell * (2 * self.row_width)
            for column in columns[::2]:
                e.prefetch(ahead + row + column * 2)
            values = [load_half(e, page + row + column * 2) for column in columns]
            for i, totals in enumerate(sums):
                weight = e.splat(e.load(F32, s.weights + cell * 4 + s.weight_stride * i))
                for total, value in zip(totals, values, strict=True):
                    total.set(e.fma(value, weight, total.get()))
        for place, totals in zip(places, sums, strict=True):
            for j, total in enumerate(totals):
                e.store(total.get(), place + 64 * j, 64)
