"""Blocks of 256 elements in runs, each with a small whole number for its scale.

The runs are searched as if alone. Then the block's own scale is chosen, the runs' numbers are
rounded to it and moved while that helps, and the block's scale follows them by least squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...core.backend.cpu.emit import Emitter, Value
from .grids import Grid
from .lanes import (
    F32X16,
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


def signed_scales(runs: Runs, grid: Grid, low: int, high: int) -> tuple[Value, Column]:
    """The block's scale, and those of the runs from `low` to `high`; codes are set."""
    e = runs.lanes.e
    scales = Column(e, runs.n)
    extreme = zero(e)

    def search(s: Value, run: Run) -> None:
        scale = signed_scale(run, grid)
        scales.set(s, scale)
        kept = extreme.get()
        extreme.set((magnitude(scale) > magnitude(kept)).select(scale, kept))

    runs.each(search)
    whole = e.variable(half(e, extreme.get() * (1 / low)))
    to_whole = inverse(e, whole.get())

    def settle(s: Value, _: Run) -> None:
        scales.set(s, rounded(clamped(e, scales.get(s) * to_whole, low, high)))

    runs.each(settle)
    for _ in range(ROUNDS):
        along, square = zero(e), zero(e)

        def improve(s: Value, run: Run, along=along, square=square) -> None:  # type: ignore[no-untyped-def]
            best = Best(e, -3e38, 1)
            for move in (0.0, -1.0, 1.0):
                number = clamped(e, scales.get(s) + move, low, high)
                unit = number * whole.get()
                back = inverse(e, unit)
                left = error_of(run, lambda x, u=unit, b=back: grid.nearest(e, x * b) * u)
                best.consider(0.0 - left, number)
            number = best.values[0]
            scales.set(s, number)
            back = inverse(e, number * whole.get())
            with run.each() as j:
                x = run.x(j)
                q = grid.nearest(e, x * back) * number
                wq = run.w(j) * q
                along.set(e.fma(wq, x, along.get()))
                square.set(e.fma(wq, q, square.get()))

        runs.each(improve)
        whole.set(half(e, ratio(e, along.get(), square.get())))

    def encode(s: Value, run: Run) -> None:
        back = inverse(e, scales.get(s) * whole.get())
        with run.each() as j:
            runs.lanes.set_code(j, grid.code(e, run.x(j) * back))

    runs.each(encode)
    return whole.get(), scales


@dataclass(frozen=True, slots=True)
class Minima:
    """What `scales_and_minima` found: x = scale * scales * code - minimum * minima."""

    scale: Value
    minimum: Value
    scales: Column
    minima: Column


def scales_and_minima(runs: Runs, spread: Spread, most: int) -> Minima:
    """The block's scale and minimum, and those of the runs from 0 to `most`; codes are set."""
    e = runs.lanes.e
    scales, minima = Column(e, runs.n), Column(e, runs.n)
    top_scale, top_minimum = zero(e), zero(e)

    def search(s: Value, run: Run) -> None:
        scale, minimum = scale_and_minimum(run, spread)
        scale = greater(scale, e.const(F32X16, 0.0))
        scales.set(s, scale)
        minima.set(s, 0.0 - minimum)
        top_scale.set(greater(scale, top_scale.get()))
        top_minimum.set(greater(0.0 - minimum, top_minimum.get()))

    runs.each(search)
    scale = e.variable(half(e, top_scale.get() * (1 / most)))
    minimum = e.variable(half(e, top_minimum.get() * (1 / most)))
    to_scale, to_minimum = inverse(e, scale.get()), inverse(e, minimum.get())

    def settle(s: Value, _: Run) -> None:
        scales.set(s, rounded(clamped(e, scales.get(s) * to_scale, 0, most)))
        minima.set(s, rounded(clamped(e, minima.get(s) * to_minimum, 0, most)))

    runs.each(settle)

    def codes(number: Value, offset: Value) -> Callable[[Value], Value]:
        back, shift = inverse(e, number * scale.get()), offset * minimum.get()
        return lambda x: rounded(clamped(e, (x + shift) * back, 0, spread.top))

    for _ in range(ROUNDS):
        sums = [zero(e) for _ in range(5)]

        def improve(s: Value, run: Run, sums=sums) -> None:  # type: ignore[no-untyped-def]
            best = Best(e, -3e38, 2)
            for move in (0.0, -1.0, 1.0):
                for shift in (0.0, -1.0, 1.0):
                    number = clamped(e, scales.get(s) + move, 0, most)
                    offset = clamped(e, minima.get(s) + shift, 0, most)
                    code = codes(number, offset)
                    unit, below = number * scale.get(), offset * minimum.get()
                    left = error_of(run, lambda x, c=code, u=unit, b=below: c(x) * u - b)
                    best.consider(0.0 - left, number, offset)
            number, offset = best.values
            scales.set(s, number)
            minima.set(s, offset)
            code = codes(number, offset)
            with run.each() as j:
                x, w = run.x(j), run.w(j)
                q = code(x) * number
                terms = ((q, q), (q, offset), (offset, offset), (q, x), (offset, x))
                for kept, (a, b) in zip(sums, terms, strict=True):
                    kept.set(e.fma(w * a, b, kept.get()))

        runs.each(improve)
        _fit(e, [kept.get() for kept in sums], scale, minimum)

    def encode(s: Value, run: Run) -> None:
        code = codes(scales.get(s), minima.get(s))
        with run.each() as j:
            runs.lanes.set_code(j, to_int(code(run.x(j))))

    runs.each(encode)
    return Minima(scale.get(), minimum.get(), scales, minima)


def _fit(e, sums, scale, minimum) -> None:  # type: ignore[no-untyped-def]
    """x = scale * q - minimum * m over the whole block, from sums of qq, qm, mm, qx and mx."""
    qq, qm, mm, qx, mx = sums
    determinant = qq * mm - qm * qm
    is_sound = determinant > qq * mm * 1e-4
    alone = ratio(e, qx, qq)
    both = ratio(e, qx * mm - mx * qm, determinant)
    low = ratio(e, qx * qm - mx * qq, determinant)
    is_sound = (low > 0.0).select(is_sound, e.const(is_sound.type, 0))
    has_minimum = mm > 0.0
    new_scale = is_sound.select(both, has_minimum.select(scale.get(), alone))
    scale.set(half(e, greater(new_scale, e.const(F32X16, 0.0))))
    minimum.set(half(e, is_sound.select(low, minimum.get())))
