"""The short convolution before a delta rule, and the ring of its raw inputs.

The ring holds the kernel - 1 rows that precede the stored state, then those whose factors are
pending. Its rows are always read before they are overwritten: writing never gets ahead of reading.
"""

from __future__ import annotations

from itertools import pairwise

from ..emit import LANES, Emitter, Value, Variable
from .delta_parts import DeltaKernelShape, DeltaPart, DeltaWords
from .mathematics import F32X16, silu

VECTOR = 4 * LANES


def convolve(
    e: Emitter,
    s: DeltaKernelShape,
    at: DeltaPart,
    words: list[Value],
    head: tuple[Value, Value],
    is_fresh: Value,
) -> None:
    """Depthwise convolution and silu of a head, all rows: its first channel, its place in a row."""
    w = DeltaWords
    first, place = head
    out = at.mixed + place * (4 * s.head_dim)
    rings = words[w.RING] + at.slot * (4 * s.conv_rows * s.channels)
    with e.range(0, 4 * s.head_dim, VECTOR) as i:
        channel = first * 4 + i
        ring, source = rings + channel, words[w.ROWS] + channel
        history = _history(e, s, at, ring, is_fresh)
        weights = [
            e.load(F32X16, words[w.CONV] + channel + 4 * s.channels * j) for j in range(s.kernel)
        ]
        n_final = at.pending - at.start
        with e.when(at.kept.equals(0)):
            for j, value in enumerate(history):
                _keep(e, s, ring, j - n_final, value.get())
        behind = at.kept + (s.kernel - 1) - n_final
        with e.range(at.start, at.end) as row:
            new = e.load(F32X16, source + row * (4 * s.width))
            total = history[0].get() * weights[0]
            for j in range(1, s.kernel - 1):
                total = e.fma(history[j].get(), weights[j], total)
            total = e.fma(new, weights[-1], total)
            e.store(silu(e, total), out + row * (4 * s.mixed_width) + i)
            for older, newer in pairwise(history):
                older.set(newer.get())
            history[-1].set(new)
            _keep(e, s, ring, row - at.start + behind, new)


def _history(
    e: Emitter, s: DeltaKernelShape, at: DeltaPart, ring: Value, is_fresh: Value
) -> list[Variable]:
    """The kernel - 1 inputs before the first row; zeros where a text begins."""
    history = []
    for j in range(s.kernel - 1):
        history.append(
            e.variable(e.load(F32X16, ring + (at.n_pending_accepted + j) * (4 * s.channels)))
        )
    with e.when(is_fresh):
        for value in history:
            value.set(e.const(F32X16, 0.0))
    return history


def _keep(e: Emitter, s: DeltaKernelShape, ring: Value, index: Value, value: Value) -> None:
    with e.when(index >= 0):
        e.store(value, ring + index * (4 * s.channels))
