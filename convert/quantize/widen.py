"""Stored floats to float32, natively, and the largest magnitude on the way: whether there is a NaN
or an infinity among them, or more than a half-float scale can take."""

from __future__ import annotations

from collections.abc import Callable

from ...core.backend.cpu.emit import F32, I16, I32, LANES, Emitter, Value, vector
from ...core.backend.cpu.kernels.mathematics import F32X16, I32X16
from .lanes import MAGNITUDE

I16X16 = vector(I16)
Loader = Callable[[Emitter, Value, Value], Value]  # (base address, index of an element)


def write_widen_f16(e: Emitter) -> None:
    def load(e: Emitter, source: Value, at: Value) -> Value:
        return e.simd.from_half(e, e.load(I16X16, source + at * 2, 2))

    _write(e, load)


def write_widen_bf16(e: Emitter) -> None:
    def load(e: Emitter, source: Value, at: Value) -> Value:
        return (e.load(I16X16, source + at * 2, 2).widen(I32X16) << 16).bits(F32X16)

    _write(e, load)


def write_widen_f32(e: Emitter) -> None:
    def load(e: Emitter, source: Value, at: Value) -> Value:
        return e.load(F32X16, source + at * 4)

    _write(e, load)


def _write(e: Emitter, load: Loader) -> None:
    """Arguments: source, target, number of elements (of whole vectors), where to put the largest
    magnitude. NaN and infinity are larger than all numbers when read as integers."""
    source, target, n, largest_at = e.words(e.parameters[0], 4)
    largest = e.variable(e.const(I32X16, 0))
    with e.range(0, n, LANES) as i:
        x = load(e, source, i)
        e.store(x, target + i * 4)
        size = x.bits(I32X16) & MAGNITUDE
        largest.set((size > largest.get()).select(size, largest.get()))
    found = e.call("llvm.vector.reduce.smax.v16i32", I32, largest.get())
    e.store(found.bits(F32), largest_at)
    e.finish()
