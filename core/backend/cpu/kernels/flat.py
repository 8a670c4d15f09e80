"""Kernels that take all numbers of all rows as one array, whatever the width of a row.

The last vector may reach into the spare rows behind, where nothing is that matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...layers import QUICK_GELU_SLOPE, PlainActivation
from ..emit import I64, LANES, Emitter, Value
from .mathematics import F32X16, gelu, gelu_erf, sigmoid, tanh


@contextmanager
def _each(e: Emitter, row_set: Value, width: int) -> Iterator[Value]:
    """Byte offsets of this thread's vectors."""
    _, part, parts = e.parameters
    vectors = (e.load(I64, row_set, 8) * width + (LANES - 1)) // LANES
    first, last = e.share(vectors, part, parts)
    with e.range(first * (4 * LANES), last * (4 * LANES), 4 * LANES) as at:
        yield at


def write_add(e: Emitter, width: int, scale: float) -> None:
    """x = (x + y) * scale. Arguments: row set, x, y."""
    row_set, x, y = e.words(e.parameters[0], 3)
    with _each(e, row_set, width) as at:
        total = e.load(F32X16, x + at) + e.load(F32X16, y + at)
        e.store(total if scale == 1.0 else total * scale, x + at)
    e.finish()


def soft_cap(e: Emitter, x: Value, cap: float) -> Value:
    return tanh(e, x * (1.0 / cap)) * cap


def write_cap(e: Emitter, width: int, cap: float) -> None:
    """x = cap * tanh(x / cap). Arguments: row set, x."""
    row_set, x = e.words(e.parameters[0], 2)
    with _each(e, row_set, width) as at:
        e.store(soft_cap(e, e.load(F32X16, x + at), cap), x + at)
    e.finish()


def write_activate(e: Emitter, width: int, activation: PlainActivation) -> None:
    """Arguments: row set, x."""
    row_set, x = e.words(e.parameters[0], 2)
    with _each(e, row_set, width) as at:
        e.store(_activated(e, e.load(F32X16, x + at), activation), x + at)
    e.finish()


def _activated(e: Emitter, x: Value, activation: PlainActivation) -> Value:
    if activation is PlainActivation.GELU_TANH:
        return gelu(e, x)
    if activation is PlainActivation.GELU_ERF:
        return gelu_erf(e, x)
    if activation is PlainActivation.RELU_SQUARED:
        left = e.larger(x, e.const(F32X16, 0.0))
        return left * left
    return x * sigmoid(e, x * QUICK_GELU_SLOPE)
