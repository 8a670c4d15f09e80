"""Vectors in parts, for instructions that take no more at a time."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..emit import I8, I32, Emitter, Value, lane_numbers

I8X64, I32X16 = ir.VectorType(I8, 64), ir.VectorType(I32, 16)


def in_parts(e: Emitter, n: int, write: Callable[..., Value], *vectors: Value) -> Value:
    """`write` of each n-th of the vectors, for instructions that take no more at a time."""
    parts = [split(e, vector, n) for vector in vectors]
    return join(e, [write(*pieces) for pieces in zip(*parts, strict=True)])


def pick(e: Emitter, value: Value, lanes: list[int], beside: Value | None = None) -> Value:
    """A vector of some lanes; those of `beside` count on from the first vector's."""
    order = lane_numbers(tuple(lanes))
    other = value if beside is None else beside
    return type(value)(e.builder, e.builder.shuffle_vector(value.v, other.v, order))


def split(e: Emitter, value: Value, n: int) -> list[Value]:
    """n equal parts, in order."""
    size = value.type.count // n
    return [e.half_of(value, i * size, size) for i in range(n)]


def join(e: Emitter, parts: list[Value]) -> Value:
    """The opposite of `split`, of a power of two of parts."""
    while len(parts) > 1:
        lanes = list(range(2 * parts[0].type.count))
        parts = [pick(e, a, lanes, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
