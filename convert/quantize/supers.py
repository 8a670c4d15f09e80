"""Blocks of 256 elements in runs, each with a small whole number for its scale.

The runs are searched as if alone. Then the block's own scale is chosen, the runs' numbers are
rounded to it and moved while that helps, and the block's scale follows them by least squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...core.backend.cpu.emit import Emitter, Value
from ...core.backend.cpu.kernels.mathematics import F32X16
from .grids import Grid
from .lanes import (
    FLOAT_VECTOR,
    Best,
    Lanes,
    Run,
    clamped,
    greater,
    inverse,
    magnitude,
    ratio,
    rounded,
    to_int,
    zero,
)
from .searches import Spread, error_of, scale_and_minimum, signed_scale

SIZE = 256
ROUNDS = 2
SMALLEST_HALF = 2.0**-24
WORST = -3e38  # no error is as large
# Of a run's scale and minimum, in steps.
MOVES = ((0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0), (1.0, 1.0), (-1.0, -1.0))


class Column:
    """A float for each run of the blocks."""

    def __init__(self, e: Emitter, n: int) -> None:
        self.e, self.n = e, n
        self._at = e.scratch(F32X16, n)

    def get(self, number: Value | int) -> Value:
        return self.e.load(F32X16, self._at + number * FLOAT_VECTOR, 64)

    def set(self, number: Value, value: Value) -> None:
        self.e.store(value, self._at + number * FLOAT_VECTOR, 64)

    def int(self, number: Value | int) -> Value:
        return to_int(self.get(number))


@dataclass(frozen=True, slots=True)
class Runs:
    lanes: Lanes
    n: int

    def each(self, do: Callable[[Value, Run], None]) -> None:
        length = SIZE // self.n
        with self.lanes.e.range(0, self.n) as s:
            do(s, self.lanes.run(s * length, length))


def half(e: Emitter, x: Value) -> Value:
    """As it will be read."""
    return e.simd.from_half(e, e.simd.to_half(e, x))


def half_above(e: Emitter, x: Value) -> Value:
    """No less than x but for a rounding, so that numbers in this unit stay within their range: of
    very small scales half floats keep only a bit or two."""
    nearest = half(e, x)
    step = (x < 0.0).select(e.const(F32X16, -SMALLEST_HALF), e.const(F32X16, SMALLEST_HALF))
    is_short = magnitude(nearest) < magnitude(x) * 0.98
    return is_short.select(half(e, x + step), nearest)


def signed_scales(runs: Runs, grid: Grid, low: int, high: int) -> tuple[Value, Column]:
    """The block's scale, and those of the runs from `low` to `high`; codes are set."""
    work = _Signed(runs, grid, low, high)
    runs.each(work.search)
    work.choose()
    runs.each(work.settle)
    for _ in range(ROUNDS):
        work.fit.clear()
        runs.each(work.improve)
        along, square = work.fit.values
        work.scale.set(half(work.e, ratio(work.e, along, square)))
    runs.each(work.encode)
    return work.scale.get(), work.scales


class _Sums:
    """Weighted sums of products over a block."""

    def __init__(self, e: Emitter, n: int) -> None:
        self.e = e
        self._kept = [zero(e) for _ in range(n)]

    def clear(self) -> None:
        for kept in self._kept:
            kept.set(self.e.const(F32X16, 0.0))

    def add(self, weight: Value, *products: tuple[Value, Value]) -> None:
        for kept, (a, b) in zip(self._kept, products, strict=True):
            kept.set(self.e.fma(weight * a, b, kept.get()))

    @property
    def values(self) -> list[Value]:
        return [kept.get() for kept in self._kept]


class _Signed:
    def __init__(self, runs: Runs, grid: Grid, low: int, high: int) -> None:
        self.e, self.runs, self.grid = runs.lanes.e, runs, grid
        self.low, self.high = low, high
        self.scales = Column(self.e, runs.n)
        self.scale, self.extreme = zero(self.e), zero(self.e)
        self.fit = _Sums(self.e, 2)

    def search(self, s: Value, run: Run) -> None:
        scale, kept = signed_scale(run, self.grid), self.extreme.get()
        self.scales.set(s, scale)
        self.extreme.set((magnitude(scale) > magnitude(kept)).select(scale, kept))

    def choose(self) -> None:
        """The largest of the runs' scales gets the number with the larger magnitude."""
        self.scale.set(half_above(self.e, self.extreme.get() * (1 / self.low)))

    def settle(self, s: Value, _: Run) -> None:
        number = self.scales.get(s) * inverse(self.e, self.scale.get())
        self.scales.set(s, rounded(self._within(number)))

    def improve(self, s: Value, run: Run) -> None:
        best = Best(self.e, WORST, 1)
        for move in (0.0, -1.0, 1.0):
            number = self._within(self.scales.get(s) + move)
            best.consider(0.0 - error_of(run, self._values(number)), number)
        number = best.values[0]
        self.scales.set(s, number)
        back = inverse(self.e, number * self.scale.get())
        with run.each() as j:
            x = run.x(j)
            q = self.grid.nearest(self.e, x * back) * number
            self.fit.add(run.w(j), (q, x), (q, q))

    def encode(self, s: Value, run: Run) -> None:
        back = inverse(self.e, self.scales.get(s) * self.scale.get())
        with run.each() as j:
            self.runs.lanes.set_code(j, self.grid.code(self.e, run.x(j) * back))

    def _within(self, number: Value) -> Value:
        return clamped(self.e, number, self.low, self.high)

    def _values(self, number: Value) -> Callable[[Value], Value]:
        unit = number * self.scale.get()
        back = inverse(self.e, unit)
        return lambda x: self.grid.nearest(self.e, x * back) * unit


@dataclass(frozen=True, slots=True)
class Minima:
    """What `scales_and_minima` found: x = scale * scales * code - minimum * minima."""

    scale: Value
    minimum: Value
    scales: Column
    minima: Column


def scales_and_minima(runs: Runs, spread: Spread, most: int) -> Minima:
    """The block's scale and minimum, and those of the runs from 0 to `most`; codes are set."""
    work = _WithMinima(runs, spread, most)
    runs.each(work.search)
    work.choose()
    runs.each(work.settle)
    for _ in range(ROUNDS):
        work.fit.clear()
        runs.each(work.improve)
        work.solve()
    runs.each(work.encode)
    return Minima(work.scale.get(), work.minimum.get(), work.scales, work.minima)


class _WithMinima:
    def __init__(self, runs: Runs, spread: Spread, most: int) -> None:
        self.e, self.runs, self.spread, self.most = runs.lanes.e, runs, spread, most
        self.scales, self.minima = Column(self.e, runs.n), Column(self.e, runs.n)
        self.scale, self.minimum = zero(self.e), zero(self.e)
        self.fit = _Sums(self.e, 5)

    def search(self, s: Value, run: Run) -> None:
        scale, minimum = scale_and_minimum(run, self.spread)
        scale = greater(scale, self.e.const(F32X16, 0.0))
        self.scales.set(s, scale)
        self.minima.set(s, 0.0 - minimum)
        self.scale.set(greater(scale, self.scale.get()))
        self.minimum.set(greater(0.0 - minimum, self.minimum.get()))

    def choose(self) -> None:
        """The largest of the runs get the largest number."""
        for largest in (self.scale, self.minimum):
            largest.set(half_above(self.e, largest.get() * (1 / self.most)))

    def settle(self, s: Value, _: Run) -> None:
        for column, unit in ((self.scales, self.scale), (self.minima, self.minimum)):
            number = column.get(s) * inverse(self.e, unit.get())
            column.set(s, rounded(self._within(number)))

    def improve(self, s: Value, run: Run) -> None:
        best = Best(self.e, WORST, 2)
        for move, shift in MOVES:
            number = self._within(self.scales.get(s) + move)
            offset = self._within(self.minima.get(s) + shift)
            best.consider(0.0 - error_of(run, self._values(number, offset)), number, offset)
        number, offset = best.values
        self.scales.set(s, number)
        self.minima.set(s, offset)
        code = self._code(number, offset)
        with run.each() as j:
            x = run.x(j)
            q = code(x) * number
            self.fit.add(run.w(j), (q, q), (q, offset), (offset, offset), (q, x), (offset, x))

    def solve(self) -> None:
        """x = scale * q - minimum * m over the whole block, with q and m as they are."""
        e = self.e
        qq, qm, mm, qx, mx = self.fit.values
        determinant = qq * mm - qm * qm
        both = ratio(e, qx * mm - mx * qm, determinant)
        low = ratio(e, qx * qm - mx * qq, determinant)
        # Where all runs are alike the two cannot be told apart: they stay as they are.
        is_sound = determinant > qq * mm * 1e-4
        alone = (mm > 0.0).select(self.scale.get(), ratio(e, qx, qq))
        for found, kept, other in ((both, self.scale, alone), (low, self.minimum, low)):
            chosen = is_sound.select(found, other)
            kept.set(half(e, (chosen > 0.0).select(chosen, kept.get())))

    def encode(self, s: Value, run: Run) -> None:
        code = self._code(self.scales.get(s), self.minima.get(s))
        with run.each() as j:
            self.runs.lanes.set_code(j, to_int(code(run.x(j))))

    def _within(self, number: Value) -> Value:
        return clamped(self.e, number, 0, self.most)

    def _code(self, number: Value, offset: Value) -> Callable[[Value], Value]:
        """How an element gets its code, where scale and minimum have these numbers."""
        below = offset * self.minimum.get()
        back, top = inverse(self.e, number * self.scale.get()), self.spread.top
        return lambda x: rounded(clamped(self.e, (x + below) * back, 0, top))

    def _values(self, number: Value, offset: Value) -> Callable[[Value], Value]:
        """What an element would be read as."""
        code = self._code(number, offset)
        unit, below = number * self.scale.get(), offset * self.minimum.get()
        return lambda x: code(x) * unit - below
