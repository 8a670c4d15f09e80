"""The short convolution of recurrent layers, and the ring of its raw inputs.

The ring holds the kernel - 1 rows that precede the stored state, then those whose factors are
pending. Its rows are always read before they are overwritten: writing never gets ahead of reading.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from msgspec import Struct

from ...layers import RecurrentShape
from ..emit import LANES, Emitter, Value, Variable
from .mathematics import F32X16
from .sequence_part import SequencePart

VECTOR = 4 * LANES


class Ring(Struct, frozen=True):
    inputs: Value  # address of (slots, kernel - 1 + window, channels)
    weights: Value  # address of (kernel, channels)
    kernel: int
    channels: int
    rows: int

    @classmethod
    def of(cls, s: RecurrentShape, inputs: Value, weights: Value, window: int) -> Ring:
        return cls(inputs, weights, s.kernel, s.channels, s.kernel - 1 + window)


def convolve(
    e: Emitter,
    ring: Ring,
    at: SequencePart,
    channel: Value,
    read: Callable[[Value], Value],
    put: Callable[[Value, Value], None],
    bias: Value | None = None,
) -> None:
    """All rows of 16 channels. `channel`: of the first, in bytes; `read` gives the inputs of a row,
    `put` takes what comes out."""
    inputs = ring.inputs + at.slot * (4 * ring.rows * ring.channels) + channel
    history = _history(e, ring, at, inputs)
    weights = [
        e.load(F32X16, ring.weights + channel + 4 * ring.channels * j) for j in range(ring.kernel)
    ]
    n_final = at.pending - at.start
    with e.when(at.kept.equals(0)):
        for j, value in enumerate(history):
            _keep(e, ring, inputs, j - n_final, value.get())
    behind = at.kept + (ring.kernel - 1) - n_final
    with e.range(at.start, at.end) as row:
        new = read(row)
        oldest = history[0].get()
        total = oldest * weights[0] if bias is None else e.fma(oldest, weights[0], bias)
        for j in range(1, ring.kernel - 1):
            total = e.fma(history[j].get(), weights[j], total)
        put(row, e.fma(new, weights[-1], total))
        for older, newer in pairwise(history):
            older.set(newer.get())
        history[-1].set(new)
        _keep(e, ring, inputs, row - at.start + behind, new)


def _history(e: Emitter, ring: Ring, at: SequencePart, inputs: Value) -> list[Variable]:
    """The kernel - 1 inputs before the first row; zeros where a sequence begins."""
    history = []
    for j in range(ring.kernel - 1):
        stored = inputs + (at.n_pending_accepted + j) * (4 * ring.channels)
        history.append(e.variable(e.load(F32X16, stored)))
    with e.when(at.is_fresh):
        for value in history:
            value.set(e.const(F32X16, 0.0))
    return history


def _keep(e: Emitter, ring: Ring, inputs: Value, index: Value, value: Value) -> None:
    with e.when(index >= 0):
        e.store(value, inputs + index * (4 * ring.channels))
