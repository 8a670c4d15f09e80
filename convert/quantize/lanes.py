"""Sixteen blocks at once, one in each lane of a vector.

All that a search decides about a block is then a `select`, sums need no reduction at the end, and
one way of writing serves every format. Element j of the blocks is one vector in memory; finished
blocks are kept byte by byte the same way, and dealt out at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...core.backend.cpu.emit import F32, I8, I16, LANES, Emitter, Value, Variable, vector
from ...core.backend.cpu.kernels.mathematics import F32X16, I32X16, ROUND

I8X16, I16X16 = vector(I8), vector(I16)
MAGNITUDE = 0x7FFFFFFF
FLOAT_VECTOR, BYTE_VECTOR = 4 * LANES, LANES
ARGUMENTS = 5  # words: float rows, importance of a row or 0, blocks, their count, and per row

Weighing = Callable[["Lanes", Value], Value]


class Lanes:
    """The blocks under work: their elements, weights and codes, and their bytes to be."""

    def __init__(self, e: Emitter, size: int, n_bytes: int) -> None:
        self.e, self.size, self.n_bytes = e, size, n_bytes
        self.elements = e.scratch(F32X16, size)
        self.weights = e.scratch(F32X16, size)
        self.codes = e.scratch(I8X16, size)
        self.bytes = e.scratch(I8X16, n_bytes)

    def run(self, start: Value | int = 0, length: int = 0) -> Run:
        at = start if isinstance(start, Value) else self.e.index(start)
        return Run(self, at, length or self.size)

    def code(self, at: Value | int) -> Value:
        return self.e.load(I8X16, self.codes + at * BYTE_VECTOR, 16).widen(I32X16)

    def set_code(self, at: Value, codes: Value) -> None:
        self.e.store(codes.narrow(I8X16), self.codes + at * BYTE_VECTOR, 16)

    def set_byte(self, at: Value | int, values: Value) -> None:
        self.e.store(values.narrow(I8X16), self.bytes + at * BYTE_VECTOR, 16)

    def set_half(self, at: int, values: Value) -> Value:
        """A half float into two bytes; returns what it reads as."""
        half = self.e.simd.to_half(self.e, values)
        self.set_byte(at, half)
        self.set_byte(at + 1, half >> 8)
        return self.e.simd.from_half(self.e, half)

    def gather(self, source: Value, target: Value, place: Callable[[Value], Value]) -> None:
        """`place` says at which element of the source the block of a lane begins."""
        e = self.e
        with e.range(0, LANES) as lane:
            at = source + place(lane) * 4
            into = target + lane * 4
            with e.range(0, self.size) as j:
                e.store(e.load(F32, at + j * 4), into + j * FLOAT_VECTOR)

    def deal(self, target: Value, number: Callable[[Value], Value]) -> None:
        e = self.e
        with e.range(0, LANES) as lane:
            into = target + number(lane) * self.n_bytes
            with e.range(0, self.n_bytes) as k:
                e.store(e.load(I8, self.bytes + lane + k * BYTE_VECTOR, 1), into + k, 1)


@dataclass(frozen=True, slots=True)
class Run:
    """Elements of the blocks that share a scale."""

    lanes: Lanes
    start: Value
    length: int

    @property
    def e(self) -> Emitter:
        return self.lanes.e

    @contextmanager
    def each(self) -> Iterator[Value]:
        """Positions in the block, one after the other."""
        with self.e.range(0, self.length) as j:
            yield self.start + j

    def x(self, at: Value) -> Value:
        return self.e.load(F32X16, self.lanes.elements + at * FLOAT_VECTOR, 64)

    def w(self, at: Value) -> Value:
        return self.e.load(F32X16, self.lanes.weights + at * FLOAT_VECTOR, 64)

    def extreme(self) -> Value:
        """The element of the largest magnitude, with its sign."""
        found = zero(self.e)
        with self.each() as j:
            x = self.x(j)
            found.set((magnitude(x) > magnitude(found.get())).select(x, found.get()))
        return found.get()

    def bounds(self) -> tuple[Value, Value]:
        first = self.x(self.start)
        low, high = self.e.variable(first), self.e.variable(first)
        with self.each() as j:
            x = self.x(j)
            low.set(lesser(x, low.get()))
            high.set(greater(x, high.get()))
        return low.get(), high.get()


class Best:
    """The best of several candidates, lane by lane."""

    def __init__(self, e: Emitter, score: float, n_values: int) -> None:
        self._score = e.variable(e.const(F32X16, score))
        self._values = [zero(e) for _ in range(n_values)]

    def consider(self, score: Value, *values: Value) -> None:
        """Higher is better; a NaN never is."""
        is_better = score > self._score.get()
        self._score.set(is_better.select(score, self._score.get()))
        for kept, value in zip(self._values, values, strict=True):
            kept.set(is_better.select(value, kept.get()))

    @property
    def values(self) -> list[Value]:
        return [kept.get() for kept in self._values]


@contextmanager
def sixteen_blocks(e: Emitter, lanes: Lanes, weigh: Weighing) -> Iterator[None]:
    """The loop over all blocks: elements and weights are in place in its body, and the bytes
    that it leaves go to where they belong. The last lanes may do the last block again."""
    rows, importance, blocks, n_blocks, per_row = e.words(e.parameters[0], ARGUMENTS)
    with e.range(0, n_blocks, LANES) as first:

        def number(lane: Value) -> Value:
            return e.minimum(first + lane, n_blocks - 1)

        lanes.gather(rows, lanes.elements, lambda lane: number(lane) * lanes.size)
        with e.when(importance.equals(0)):
            _fill_weights(lanes, lambda x, _: weigh(lanes, x))
        with e.when(importance > 0):
            lanes.gather(
                importance, lanes.weights, lambda lane: (number(lane) % per_row) * lanes.size
            )
            spread = mean_square(lanes)
            _fill_weights(lanes, lambda x, given: given * root(e, x * x + spread))
        yield
        lanes.deal(blocks, number)
    e.finish()


def _fill_weights(lanes: Lanes, weight: Callable[[Value, Value], Value]) -> None:
    run = lanes.run()
    with run.each() as j:
        lanes.e.store(weight(run.x(j), run.w(j)), lanes.weights + j * FLOAT_VECTOR, 64)


def mean_square(lanes: Lanes) -> Value:
    run, total = lanes.run(), zero(lanes.e)
    with run.each() as j:
        x = run.x(j)
        total.set(lanes.e.fma(x, x, total.get()))
    return total.get() * (1 / lanes.size)


def evenly(lanes: Lanes, x: Value) -> Value:
    return lanes.e.const(F32X16, 1.0)


def zero(e: Emitter) -> Variable:
    return e.variable(e.const(F32X16, 0.0))


def magnitude(x: Value) -> Value:
    return (x.bits(I32X16) & MAGNITUDE).bits(F32X16)


def lesser(a: Value, b: Value) -> Value:
    return (a < b).select(a, b)


def greater(a: Value, b: Value) -> Value:
    return (a > b).select(a, b)


def clamped(e: Emitter, x: Value, low: float, high: float) -> Value:
    return greater(lesser(x, e.const(x.type, high)), e.const(x.type, low))


def rounded(x: Value) -> Value:
    """To the nearest whole number, as a float; for |x| < 2^22."""
    return (x + ROUND) - ROUND


def to_int(x: Value) -> Value:
    """A whole number as int32."""
    return Value(x.builder, x.builder.fptosi(x.v, I32X16))


def root(e: Emitter, x: Value) -> Value:
    return e.call("llvm.sqrt.v16f32", F32X16, x)


def ratio(e: Emitter, above: Value, below: Value) -> Value:
    """0 where the divisor is too small to divide by."""
    is_zero = magnitude(below) < 1e-37
    divided = above / is_zero.select(e.const(F32X16, 1.0), below)
    return is_zero.select(e.const(F32X16, 0.0), divided)


def inverse(e: Emitter, x: Value) -> Value:
    return ratio(e, e.const(F32X16, 1.0), x)


def counted(e: Emitter, i: Value, start: float, step: float) -> Value:
    """start + i * step in all lanes."""
    return e.splat(i.to_float(F32) * step + start)
