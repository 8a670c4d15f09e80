"""Scales by weighted least squares: several candidates say which code each element gets, and the
scale that is best for these codes competes with the others' by what it leaves over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...core.backend.cpu.emit import Value
from ...core.backend.cpu.kernels.mathematics import F32X16
from .grids import Grid
from .lanes import Best, Run, clamped, counted, inverse, lesser, ratio, rounded, zero

REFINEMENTS = 2  # of the best candidate: codes by its scale, then the best scale for these


def signed_scale(run: Run, grid: Grid) -> Value:
    """x = scale * value."""
    e = run.e
    best = Best(e, 0.0, 1)

    def consider(inverse_scale: Value) -> None:
        along, square = zero(e), zero(e)
        with run.each() as j:
            x = run.x(j)
            q = grid.nearest(e, x * inverse_scale)
            wq = run.w(j) * q
            along.set(e.fma(wq, x, along.get()))
            square.set(e.fma(wq, q, square.get()))
        scale = ratio(e, along.get(), square.get())
        best.consider(along.get() * scale, scale)

    largest = inverse(e, run.extreme())
    for first, step, count in grid.places:
        with e.range(0, count) as i:
            consider(largest * counted(e, i, first, step))
    with e.range(0, REFINEMENTS):
        consider(inverse(e, best.values[0]))
    return best.values[0]


def sum_weights(run: Run, shift: Value) -> tuple[Value, Value]:
    total, along = zero(run.e), zero(run.e)
    with run.each() as j:
        w = run.w(j)
        total.set(total.get() + w)
        along.set(run.e.fma(w, run.x(j) - shift, along.get()))
    return total.get(), along.get()


@dataclass(frozen=True, slots=True)
class Spread:
    """How scale and minimum are looked for: codes are 0 to `top`."""

    top: int
    first: float = -1.0  # the candidates' whole range is top + first + i * step
    step: float = 0.2
    count: int = 11
    is_below_zero: bool = False  # the minimum may not be above zero


def scale_and_minimum(run: Run, spread: Spread) -> tuple[Value, Value]:
    """x = scale * code + minimum."""
    e = run.e
    low, high = run.bounds()
    nothing, one = e.const(F32X16, 0.0), e.const(F32X16, 1.0)
    if spread.is_below_zero:
        low = lesser(low, nothing)
    # Far from zero the sums would cancel; where zero is a bound, it has to stay where it is.
    shift = nothing if spread.is_below_zero else low
    total, along_one = sum_weights(run, shift)
    best = Best(e, 0.0, 2)

    def consider(inverse_scale: Value, offset: Value) -> None:
        q1, q2, along = zero(e), zero(e), zero(e)
        with run.each() as j:
            x = run.x(j) - shift
            q = rounded(clamped(e, (x - offset) * inverse_scale, 0, spread.top))
            wq = run.w(j) * q
            q1.set(q1.get() + wq)
            q2.set(e.fma(wq, q, q2.get()))
            along.set(e.fma(wq, x, along.get()))
        best.consider(*_solve(total, q1.get(), q2.get(), along.get(), along_one))

    def _solve(w: Value, q1: Value, q2: Value, xq: Value, xw: Value) -> tuple[Value, Value, Value]:
        determinant = w * q2 - q1 * q1
        scale = ratio(e, w * xq - xw * q1, determinant)
        minimum = ratio(e, q2 * xw - q1 * xq, determinant)
        if spread.is_below_zero:
            # Where all codes are the same, nothing is known of a minimum either.
            is_above = (determinant > w * q2 * 1e-6).select(minimum, one) > 0.0
            minimum = is_above.select(nothing, minimum)
            scale = is_above.select(ratio(e, xq, q2), scale)
        return scale * xq + minimum * xw, scale, minimum

    # Without any scale: all elements are the minimum.
    flat = ratio(e, along_one, total)
    if spread.is_below_zero:
        flat = lesser(flat, nothing)
    best.consider(flat * along_one, nothing, flat)
    range_inverse = inverse(e, high - low)
    with e.range(0, spread.count) as i:
        consider(range_inverse * counted(e, i, spread.top + spread.first, spread.step), low - shift)
    with e.range(0, REFINEMENTS):
        scale, minimum = best.values
        consider(inverse(e, scale), minimum)
    scale, minimum = best.values
    return scale, minimum + shift


def error_of(run: Run, value: Callable[[Value], Value]) -> Value:
    """The weighted square of what `value` (of an element) leaves over."""
    e, total = run.e, zero(run.e)
    with run.each() as j:
        x = run.x(j)
        left = x - value(x)
        total.set(e.fma(run.w(j) * left, left, total.get()))
    return total.get()
