"""Scales by weighted least squares.

Each of several candidate scales gives every element a code. The scale that is best for these codes
competes with those of the other candidates by the error that it leaves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

from msgspec import Struct

from ...core.backend.cpu.emit import F32, Emitter, Value
from ...core.backend.cpu.kernels.mathematics import F32X16, I32X16
from ...core.gguf.blocks_32 import IQ4_VALUES
from .sixteen_blocks import (
    BestCandidate,
    LaneSums,
    Segment,
    clamped,
    inverse,
    lesser,
    like,
    magnitude,
    ratio,
    rounded,
    to_int,
)

REFINEMENTS = 2  # of the best candidate: codes by its scale, then the best scale for these


class Grid(ABC):
    """The values that a code may stand for, in units of the scale, on both sides of zero."""

    # Candidates for the place of the largest element: (first, step, how many).
    places: tuple[tuple[float, float, int], ...] = ()

    @abstractmethod
    def nearest(self, x: Value) -> Value:
        """The nearest value of the grid, as a float."""

    @abstractmethod
    def code(self, x: Value) -> Value:
        """The code of the nearest value, as int32."""


class Uniform(Grid):
    """Whole numbers from -n to n - 1."""

    def __init__(self, n: int, step: float, reach: float) -> None:
        self.n = n
        count = round(2 * reach / step) + 1
        self.places = ((-n - reach, step, count), (n - 1 - reach, step, count))

    def nearest(self, x: Value) -> Value:
        return rounded(clamped(x, -self.n, self.n - 1))

    def code(self, x: Value) -> Value:
        return to_int(self.nearest(x)) + self.n


class Codebook(Grid):
    """The 16 values of IQ4_NL and IQ4_XS."""

    places = ((-127 - 15.0, 5.0, 7), (113 - 15.0, 5.0, 7))
    values = tuple(float(v) for v in IQ4_VALUES)

    def _steps(self, x: Value, result: Value, sizes: list[float]) -> Value:
        """The start value `result` plus the size of every step whose threshold x exceeds."""
        for (low, high), size in zip(pairwise(self.values), sizes, strict=True):
            result = (x > (low + high) / 2).select(result + size, result)
        return result

    def nearest(self, x: Value) -> Value:
        gaps = [high - low for low, high in pairwise(self.values)]
        return self._steps(x, like(x, self.values[0]), gaps)

    def code(self, x: Value) -> Value:
        return self._steps(x, like(x.bits(I32X16), 0), [1] * (len(self.values) - 1))


class Fp4(Grid):
    """Twice the E2M1 values: 0 1 2 3 4 6 8 12 and their negatives."""

    values = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)

    def nearest(self, x: Value) -> Value:
        result = self._pick(x, [like(x, value) for value in self.values])
        return (x < 0.0).select(0.0 - result, result)

    def code(self, x: Value) -> Value:
        whole = x.bits(I32X16)
        result = self._pick(x, [like(whole, number) for number in range(len(self.values))])
        return (x < 0.0).select(result | 8, result)

    def _pick(self, x: Value, choices: list[Value]) -> Value:
        """The choice that belongs to the value nearest to |x|."""
        size, result = magnitude(x), choices[0]
        for (low, high), choice in zip(pairwise(self.values), choices[1:], strict=True):
            result = (size > (low + high) / 2).select(choice, result)
        return result


def signed_scale(segment: Segment, grid: Grid) -> Value:
    """The scale of x = scale * value."""
    e, best = segment.e, BestCandidate(segment.e, 0.0, 1)

    def consider(inverse_scale: Value) -> None:
        sums = LaneSums(e, 2)
        with segment.each() as j:
            x = segment.x(j)
            q = grid.nearest(x * inverse_scale)
            wq = segment.w(j) * q
            sums.add((wq, x), (wq, q))
        along, square = sums.values
        scale = ratio(along, square)
        best.consider(along * scale, scale)

    largest = inverse(segment.extreme())
    for first, step, count in grid.places:
        with e.range(0, count) as i:
            consider(largest * _candidate(e, i, first, step))
    with e.range(0, REFINEMENTS):
        consider(inverse(best.values[0]))
    return best.values[0]


class MinimumSearch(Struct, frozen=True):
    """Settings of the search for a scale and a minimum: codes are 0 to `top`."""

    top: int
    first: float = -1.0  # the candidates' whole range is top + first + i * step
    step: float = 0.2
    count: int = 11
    is_below_zero: bool = False  # the minimum may not be above zero


def scale_and_minimum(segment: Segment, search: MinimumSearch) -> tuple[Value, Value]:
    """Scale and minimum of x = scale * code + minimum."""
    e = segment.e
    low, high = segment.bounds()
    nothing, one = e.const(F32X16, 0.0), e.const(F32X16, 1.0)
    if search.is_below_zero:
        low = lesser(low, nothing)
    # Far from zero the sums would cancel; where zero is a bound, it has to stay where it is.
    shift = nothing if search.is_below_zero else low
    sums = LaneSums(e, 2)
    with segment.each() as j:
        w = segment.w(j)
        sums.add((w, one), (w, segment.x(j) - shift))
    total, along_one = sums.values
    best = BestCandidate(e, 0.0, 2)

    def consider(inverse_scale: Value, offset: Value) -> None:
        sums = LaneSums(e, 3)
        with segment.each() as j:
            x = segment.x(j) - shift
            q = rounded(clamped((x - offset) * inverse_scale, 0, search.top))
            wq = segment.w(j) * q
            sums.add((wq, one), (wq, q), (wq, x))
        q1, q2, xq = sums.values
        best.consider(*_solve(search, total, q1, q2, xq, along_one))

    # Without any scale: all elements are the minimum.
    flat = ratio(along_one, total)
    if search.is_below_zero:
        flat = lesser(flat, nothing)
    best.consider(flat * along_one, nothing, flat)
    range_inverse = inverse(high - low)
    with e.range(0, search.count) as i:
        steps = _candidate(e, i, search.top + search.first, search.step)
        consider(range_inverse * steps, low - shift)
    with e.range(0, REFINEMENTS):
        scale, minimum = best.values
        consider(inverse(scale), minimum)
    scale, minimum = best.values
    return scale, minimum + shift


def _solve(
    search: MinimumSearch, w: Value, q1: Value, q2: Value, xq: Value, xw: Value
) -> tuple[Value, Value, Value]:
    """Score, scale and minimum from the weighted sums of 1, q, q * q, x * q and x."""
    determinant = w * q2 - q1 * q1
    scale = ratio(w * xq - xw * q1, determinant)
    minimum = ratio(q2 * xw - q1 * xq, determinant)
    if search.is_below_zero:
        # Where all codes are the same, the sums do not determine a minimum.
        is_above = (determinant > w * q2 * 1e-6).select(minimum, like(w, 1.0)) > 0.0
        minimum = is_above.select(like(w, 0.0), minimum)
        scale = is_above.select(ratio(xq, q2), scale)
    return scale * xq + minimum * xw, scale, minimum


def _candidate(e: Emitter, i: Value, first: float, step: float) -> Value:
    """first + i * step in all lanes."""
    return e.splat(i.to_float(F32) * step + first)
