"""Blocks of 256 elements in runs, each with a small whole number for its scale.

Each run is searched alone first. Then the block's own scale is chosen, the runs' numbers are
rounded to it and moved while that lowers the error, and the block's scale follows by least squares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from msgspec import Struct

from ...core.backend.cpu.emit import Emitter, Value
from ...core.backend.cpu.kernels.mathematics import F32X16
from .scale_search import Grid, MinimumSearch, scale_and_minimum, signed_scale
from .sixteen_blocks import (
    FLOAT_VECTOR,
    BestCandidate,
    LaneSums,
    Segment,
    SixteenBlocks,
    clamped,
    farther_from_zero,
    greater,
    inverse,
    like,
    magnitude,
    ratio,
    rounded,
    to_int,
    zero,
)

ROUNDS = 2
SMALLEST_HALF = 2.0**-24
WORST = -3e38  # below every score
# Changes of a run's scale, or of its scale and minimum, in steps.
MOVES_OF_SCALE = ((0.0,), (-1.0,), (1.0,))
MOVES_OF_BOTH = (
    (0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0), (1.0, 1.0), (-1.0, -1.0),
)  # fmt: skip

ElementMap = Callable[[Value], Value]


class RunNumbers:
    """A float for each run of the blocks."""

    def __init__(self, e: Emitter, n: int) -> None:
        self.e, self._at = e, e.scratch(F32X16, n)

    def get(self, run: Value | int) -> Value:
        return self.e.load(F32X16, self._at + run * FLOAT_VECTOR, 64)

    def set(self, run: Value, value: Value) -> None:
        self.e.store(value, self._at + run * FLOAT_VECTOR, 64)

    def int(self, run: Value | int) -> Value:
        return to_int(self.get(run))


class BlockScales(Struct, frozen=True):
    """x = units[0] * numbers[0] * code, minus units[1] * numbers[1] where there is a minimum."""

    units: list[Value]  # of the block
    numbers: list[RunNumbers]  # of the runs


def half(e: Emitter, x: Value) -> Value:
    """x as it reads from a half float."""
    return e.simd.from_half(e, e.simd.to_half(e, x))


def half_above(e: Emitter, x: Value) -> Value:
    """No less than x but for a rounding, so that numbers in this unit stay within their range: of
    very small scales half floats keep only a bit or two."""
    nearest = half(e, x)
    step = (x < 0.0).select(like(x, -SMALLEST_HALF), like(x, SMALLEST_HALF))
    is_short = magnitude(nearest) < magnitude(x) * 0.98
    return is_short.select(half(e, x + step), nearest)


class _SuperBlockSearch(ABC):
    moves: Sequence[tuple[float, ...]]
    n_sums: int

    def __init__(self, blocks: SixteenBlocks, n_runs: int, bounds: tuple[int, int]) -> None:
        """`bounds`: of the runs' numbers."""
        self.e, self.blocks, self.n_runs, self.bounds = blocks.e, blocks, n_runs, bounds
        n_units = len(self.moves[0])
        self.numbers = [RunNumbers(self.e, n_runs) for _ in range(n_units)]
        self.units = [zero(self.e) for _ in range(n_units)]
        self.sums = LaneSums(self.e, self.n_sums)

    @abstractmethod
    def search(self, run: Value, segment: Segment) -> None:
        """Set the run's own scale, and in `units` the largest of all runs."""

    @abstractmethod
    def code(self, numbers: list[Value]) -> ElementMap:
        """How an element gets its code where a run has these numbers."""

    @abstractmethod
    def values(self, numbers: list[Value]) -> ElementMap:
        """What an element reads as where a run has these numbers."""

    @abstractmethod
    def collect(self, segment: Segment, numbers: list[Value]) -> None:
        """Add the run to the sums."""

    @abstractmethod
    def solve(self) -> None:
        """Set the units by the sums."""

    def find(self) -> BlockScales:
        """Search the block and set its codes."""
        self._for_each_run(self.search)
        # The largest of the runs gets the number with the largest magnitude.
        most = self.bounds[0] or self.bounds[1]
        for unit in self.units:
            unit.set(half_above(self.e, unit.get() * (1 / most)))
        self._for_each_run(self._round)
        for _ in range(ROUNDS):
            self.sums.clear()
            self._for_each_run(self._improve)
            self.solve()
        self._for_each_run(self._encode)
        return BlockScales([unit.get() for unit in self.units], self.numbers)

    def _for_each_run(self, do: Callable[[Value, Segment], None]) -> None:
        length = self.blocks.size // self.n_runs
        with self.e.range(0, self.n_runs) as run:
            do(run, self.blocks.segment(run * length, length))

    def _round(self, run: Value, _: Segment) -> None:
        for numbers, unit in zip(self.numbers, self.units, strict=True):
            numbers.set(run, rounded(self._within(numbers.get(run) * inverse(unit.get()))))

    def _improve(self, run: Value, segment: Segment) -> None:
        best = BestCandidate(self.e, WORST, len(self.numbers))
        for moves in self.moves:
            moved = [
                self._within(numbers.get(run) + move)
                for numbers, move in zip(self.numbers, moves, strict=True)
            ]
            best.consider(0.0 - segment.error(self.values(moved)), *moved)
        for numbers, value in zip(self.numbers, best.values, strict=True):
            numbers.set(run, value)
        self.collect(segment, best.values)

    def _encode(self, run: Value, segment: Segment) -> None:
        code = self.code([numbers.get(run) for numbers in self.numbers])
        with segment.each() as j:
            self.blocks.set_code(j, code(segment.x(j)))

    def _within(self, number: Value) -> Value:
        return clamped(number, *self.bounds)


class SignedSearch(_SuperBlockSearch):
    """x = scale * number * value of the grid."""

    moves, n_sums = MOVES_OF_SCALE, 2

    def __init__(
        self, blocks: SixteenBlocks, n_runs: int, bounds: tuple[int, int], grid: Grid
    ) -> None:
        super().__init__(blocks, n_runs, bounds)
        self.grid = grid

    def search(self, run: Value, segment: Segment) -> None:
        scale = signed_scale(segment, self.grid)
        self.numbers[0].set(run, scale)
        self.units[0].set(farther_from_zero(scale, self.units[0].get()))

    def code(self, numbers: list[Value]) -> ElementMap:
        back = inverse(numbers[0] * self.units[0].get())
        return lambda x: self.grid.code(x * back)

    def values(self, numbers: list[Value]) -> ElementMap:
        unit = numbers[0] * self.units[0].get()
        back = inverse(unit)
        return lambda x: self.grid.nearest(x * back) * unit

    def collect(self, segment: Segment, numbers: list[Value]) -> None:
        back = inverse(numbers[0] * self.units[0].get())
        with segment.each() as j:
            x = segment.x(j)
            q = self.grid.nearest(x * back) * numbers[0]
            wq = segment.w(j) * q
            self.sums.add((wq, x), (wq, q))

    def solve(self) -> None:
        self.units[0].set(half(self.e, ratio(*self.sums.values)))


class MinimaSearch(_SuperBlockSearch):
    """x = scale * number * code - minimum * number."""

    moves, n_sums = MOVES_OF_BOTH, 5

    def __init__(
        self, blocks: SixteenBlocks, n_runs: int, most: int, settings: MinimumSearch
    ) -> None:
        super().__init__(blocks, n_runs, (0, most))
        self.settings = settings

    def search(self, run: Value, segment: Segment) -> None:
        scale, minimum = scale_and_minimum(segment, self.settings)
        found = greater(scale, like(scale, 0.0)), 0.0 - minimum
        for value, numbers, unit in zip(found, self.numbers, self.units, strict=True):
            numbers.set(run, value)
            unit.set(greater(value, unit.get()))

    def code(self, numbers: list[Value]) -> ElementMap:
        code = self._code(numbers)
        return lambda x: to_int(code(x))

    def values(self, numbers: list[Value]) -> ElementMap:
        code = self._code(numbers)
        unit, below = (a * b.get() for a, b in zip(numbers, self.units, strict=True))
        return lambda x: code(x) * unit - below

    def _code(self, numbers: list[Value]) -> ElementMap:
        """The code as a float."""
        unit, below = (a * b.get() for a, b in zip(numbers, self.units, strict=True))
        back, top = inverse(unit), self.settings.top
        return lambda x: rounded(clamped((x + below) * back, 0, top))

    def collect(self, segment: Segment, numbers: list[Value]) -> None:
        number, offset = numbers
        code = self._code(numbers)
        with segment.each() as j:
            x, w = segment.x(j), segment.w(j)
            q = code(x) * number
            wq, wm = w * q, w * offset
            self.sums.add((wq, q), (wq, offset), (wm, offset), (wq, x), (wm, x))

    def solve(self) -> None:
        """x = scale * q - minimum * m over the whole block, with q and m as they are."""
        qq, qm, mm, qx, mx = self.sums.values
        scale, minimum = self.units
        determinant = qq * mm - qm * qm
        both = ratio(qx * mm - mx * qm, determinant)
        low = ratio(qx * qm - mx * qq, determinant)
        # Where all runs are alike the sums do not determine both: the minimum stays as it is.
        is_sound = determinant > qq * mm * 1e-4
        alone = (mm > 0.0).select(scale.get(), ratio(qx, qq))
        for found, kept, other in ((both, scale, alone), (low, minimum, low)):
            chosen = is_sound.select(found, other)
            kept.set(half(self.e, (chosen > 0.0).select(chosen, kept.get())))
