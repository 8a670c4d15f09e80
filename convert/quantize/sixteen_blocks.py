"""Sixteen blocks at once, one in each lane of a vector, for the kernels that quantise.

A choice about a block is then a `select`, sums need no reduction at the end, and one way of writing
serves every format. Element j of the blocks is one vector in memory; the bytes of finished blocks
are kept the same way and are copied to their places at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from ...core.backend.cpu.emit import (
    F32,
    I8,
    LANES,
    Emitter,
    Value,
    Variable,
    constant,
    vector,
)
from ...core.backend.cpu.kernels.mathematics import F32X16, I32X16, ROUND

I8X16 = vector(I8)
MAGNITUDE = 0x7FFFFFFF
FLOAT_VECTOR, BYTE_VECTOR = 4 * LANES, LANES
N_ARGUMENTS = 5  # words: float rows, importance of a row or 0, blocks, their count, and per row


class SixteenBlocks:
    """Elements, weights and codes of the blocks in work, and the bytes they become."""

    def __init__(self, e: Emitter, size: int, n_bytes: int) -> None:
        self.e, self.size, self.n_bytes = e, size, n_bytes
        self.elements = e.scratch(F32X16, size)
        self.weights = e.scratch(F32X16, size)
        self.codes = e.scratch(I8X16, size)
        self.bytes = e.scratch(I8X16, n_bytes)

    def segment(self, start: Value | int = 0, length: int = 0) -> Segment:
        at = start if isinstance(start, Value) else self.e.index(start)
        return Segment(self, at, length or self.size)

    def code(self, at: Value | int) -> Value:
        return self.e.load(I8X16, self.codes + at * BYTE_VECTOR, 16).widen(I32X16)

    def set_code(self, at: Value, codes: Value) -> None:
        self.e.store(codes.narrow(I8X16), self.codes + at * BYTE_VECTOR, 16)

    def set_byte(self, at: Value | int, values: Value) -> None:
        self.e.store(values.narrow(I8X16), self.bytes + at * BYTE_VECTOR, 16)

    def set_half(self, at: int, values: Value) -> Value:
        """Store a half float in two bytes; returns the value that a reader gets."""
        half = self.e.simd.to_half(self.e, values)
        self.set_byte(at, half)
        self.set_byte(at + 1, half >> 8)
        return self.e.simd.from_half(self.e, half)

    def gather(self, source: Value, target: Value, first_element: Callable[[Value], Value]) -> None:
        """`first_element` returns where in the source the block of a lane begins."""
        e = self.e
        with e.range(0, LANES) as lane:
            at, into = source + first_element(lane) * 4, target + lane * 4
            with e.range(0, self.size) as j:
                e.store(e.load(F32, at + j * 4), into + j * FLOAT_VECTOR)

    def scatter(self, target: Value, number: Callable[[Value], Value]) -> None:
        e = self.e
        with e.range(0, LANES) as lane:
            into = target + number(lane) * self.n_bytes
            with e.range(0, self.n_bytes) as k:
                e.store(e.load(I8, self.bytes + lane + k * BYTE_VECTOR, 1), into + k, 1)

    def fill_weights(self, weight: Callable[[Value, Value], Value]) -> None:
        """`weight` gets an element and the weight that is stored now."""
        block = self.segment()
        with block.each() as j:
            value = weight(block.x(j), block.w(j))
            self.e.store(value, self.weights + j * FLOAT_VECTOR, 64)


class Segment(Struct, frozen=True):
    """Elements of the blocks that share a scale."""

    blocks: SixteenBlocks
    start: Value
    length: int

    @property
    def e(self) -> Emitter:
        return self.blocks.e

    @contextmanager
    def each(self) -> Iterator[Value]:
        """Positions in the block, one after the other."""
        with self.e.range(0, self.length) as j:
            yield self.start + j

    def x(self, at: Value) -> Value:
        return self.e.load(F32X16, self.blocks.elements + at * FLOAT_VECTOR, 64)

    def w(self, at: Value) -> Value:
        return self.e.load(F32X16, self.blocks.weights + at * FLOAT_VECTOR, 64)

    def extreme(self) -> Value:
        """The element of the largest magnitude, with its sign."""
        found = zero(self.e)
        with self.each() as j:
            found.set(farther_from_zero(self.x(j), found.get()))
        return found.get()

    def bounds(self) -> tuple[Value, Value]:
        first = self.x(self.start)
        low, high = self.e.variable(first), self.e.variable(first)
        with self.each() as j:
            x = self.x(j)
            low.set(lesser(x, low.get()))
            high.set(greater(x, high.get()))
        return low.get(), high.get()

    def error(self, value: Callable[[Value], Value]) -> Value:
        """The weighted sum of squares of x - value(x)."""
        total = LaneSums(self.e, 1)
        with self.each() as j:
            x = self.x(j)
            difference = x - value(x)
            total.add((self.w(j) * difference, difference))
        return total.values[0]


class LaneSums:
    """Several sums of products, lane by lane."""

    def __init__(self, e: Emitter, n: int) -> None:
        self.e, self._sums = e, [zero(e) for _ in range(n)]

    def clear(self) -> None:
        for total in self._sums:
            total.set(self.e.const(F32X16, 0.0))

    def add(self, *products: tuple[Value, Value]) -> None:
        for total, (a, b) in zip(self._sums, products, strict=True):
            total.set(self.e.fma(a, b, total.get()))

    @property
    def values(self) -> list[Value]:
        return [total.get() for total in self._sums]


class BestCandidate:
    """The values of the candidate with the highest score, lane by lane."""

    def __init__(self, e: Emitter, score: float, n_values: int) -> None:
        self._score = e.variable(e.const(F32X16, score))
        self._values = [zero(e) for _ in range(n_values)]

    def consider(self, score: Value, *values: Value) -> None:
        """A score of NaN never wins."""
        is_better = score > self._score.get()
        self._score.set(is_better.select(score, self._score.get()))
        for kept, value in zip(self._values, values, strict=True):
            kept.set(is_better.select(value, kept.get()))

    @property
    def values(self) -> list[Value]:
        return [kept.get() for kept in self._values]


@contextmanager
def all_blocks(e: Emitter, blocks: SixteenBlocks) -> Iterator[None]:
    """The loop over all blocks: elements and weights are in place in its body, and the bytes that
    the body sets go to their places. The last lanes may repeat the last block."""
    rows, importance, target, n_blocks, per_row = e.words(e.parameters[0], N_ARGUMENTS)
    with e.range(0, n_blocks, LANES) as first:

        def number(lane: Value) -> Value:
            return e.minimum(first + lane, n_blocks - 1)

        blocks.gather(rows, blocks.elements, lambda lane: number(lane) * blocks.size)
        with e.when(importance.equals(0)):
            blocks.fill_weights(lambda x, _: like(x, 1.0))
        with e.when(importance > 0):
            columns = blocks.weights
            blocks.gather(importance, columns, lambda lane: number(lane) % per_row * blocks.size)
            total, block = LaneSums(e, 1), blocks.segment()
            with block.each() as j:
                total.add((block.x(j), block.x(j)))
            mean_square = total.values[0] * (1 / blocks.size)
            blocks.fill_weights(
                lambda x, w: w * e.call("llvm.sqrt.v16f32", F32X16, x * x + mean_square)
            )
        yield
        blocks.scatter(target, number)
    e.finish()


def zero(e: Emitter) -> Variable:
    return e.variable(e.const(F32X16, 0.0))


def like(x: Value, number: float) -> Value:
    """The number in all lanes of x's type."""
    return Value(x.builder, constant(x.type, number))


def magnitude(x: Value) -> Value:
    return (x.bits(I32X16) & MAGNITUDE).bits(F32X16)


def farther_from_zero(a: Value, b: Value) -> Value:
    return (magnitude(a) > magnitude(b)).select(a, b)


def lesser(a: Value, b: Value) -> Value:
    return (a < b).select(a, b)


def greater(a: Value, b: Value) -> Value:
    return (a > b).select(a, b)


def clamped(x: Value, low: float, high: float) -> Value:
    return greater(lesser(x, like(x, high)), like(x, low))


def rounded(x: Value) -> Value:
    """The nearest whole number, as a float; for |x| < 2^22."""
    return (x + ROUND) - ROUND


def to_int(x: Value) -> Value:
    """A whole number as int32."""
    return Value(x.builder, x.builder.fptosi(x.v, I32X16))


def ratio(above: Value, below: Value) -> Value:
    """0 where the divisor is too small to divide by."""
    is_zero = magnitude(below) < 1e-37
    divided = above / is_zero.select(like(below, 1.0), below)
    return is_zero.select(like(below, 0.0), divided)


def inverse(x: Value) -> Value:
    return ratio(like(x, 1.0), x)
