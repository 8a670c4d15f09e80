"""Blocks of 32 elements with a scale, and some with a minimum: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL
MXFP4. Layouts: core/gguf/blocks_32.py."""

from __future__ import annotations

from collections.abc import Callable

from ...core.backend.cpu.emit import Emitter, Value
from ...core.backend.cpu.kernels.mathematics import F32X16, I32X16
from .grids import Codebook, Fp4, Grid, Uniform
from .lanes import Best, Lanes, clamped, evenly, inverse, magnitude, rounded, sixteen_blocks, to_int
from .searches import Spread, error_of, scale_and_minimum, signed_scale

SIZE, HALF = 32, 16


def write_q4_0(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 18)
    with sixteen_blocks(e, lanes, evenly):
        _scale_and_codes(lanes, Uniform(8, 0.25, 1.5))
        _nibbles(lanes, 2)


def write_iq4_nl(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 18)
    with sixteen_blocks(e, lanes, evenly):
        _scale_and_codes(lanes, Codebook())
        _nibbles(lanes, 2)


def write_q5_0(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 22)
    with sixteen_blocks(e, lanes, evenly):
        _scale_and_codes(lanes, Uniform(16, 0.4, 1.6))
        _fifth_bits(lanes, 2)
        _nibbles(lanes, 6)


def write_q4_1(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 20)
    with sixteen_blocks(e, lanes, evenly):
        _minimum_and_codes(lanes, Spread(15))
        _nibbles(lanes, 4)


def write_q5_1(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 24)
    with sixteen_blocks(e, lanes, evenly):
        _minimum_and_codes(lanes, Spread(31))
        _fifth_bits(lanes, 4)
        _nibbles(lanes, 8)


def write_q8_0(e: Emitter) -> None:
    """No search: with 255 steps there is nothing to gain, and files are the same as others'."""
    lanes = Lanes(e, SIZE, 34)
    with sixteen_blocks(e, lanes, evenly):
        run = lanes.run()
        scale = magnitude(run.extreme()) * (1 / 127)
        lanes.set_half(0, scale)
        inverse_scale = inverse(e, scale)
        with run.each() as j:
            q = rounded(clamped(e, run.x(j) * inverse_scale, -127, 127))
            lanes.set_byte(j + 2, to_int(q))


def write_mxfp4(e: Emitter) -> None:
    """The scale is a power of two: that of the largest element, or one of its neighbours."""
    lanes, grid = Lanes(e, SIZE, 17), Fp4()
    with sixteen_blocks(e, lanes, evenly):
        run = lanes.run()
        largest = magnitude(run.extreme())
        exponent = largest.bits(I32X16) >> 23
        best = Best(e, -3e38, 1)
        for below in (2, 1, 3):
            at = _between(e, exponent - below, 2, 252)
            best.consider(0.0 - error_of(run, _read_back(e, grid, at)), at.to_float(F32X16))
        at = to_int(best.values[0])
        # A block of zeros has no scale; anything below 2^-120 is as good as zero.
        at = (largest < 2.0**-120).select(e.const(I32X16, 2), at)
        lanes.set_byte(0, (largest > 0.0).select(at, e.const(I32X16, 0)))
        _, inverse_scale = _powers(at)
        with run.each() as j:
            lanes.set_code(j, grid.code(e, run.x(j) * inverse_scale))
        _nibbles(lanes, 1)


def _powers(at: Value) -> tuple[Value, Value]:
    """2^(at - 128) and its inverse."""
    return ((at - 1) << 23).bits(F32X16), ((255 - at) << 23).bits(F32X16)


def _read_back(e: Emitter, grid: Grid, at: Value) -> Callable[[Value], Value]:
    scale, inverse_scale = _powers(at)
    return lambda x: grid.nearest(e, x * inverse_scale) * scale


def _between(e: Emitter, x: Value, low: int, high: int) -> Value:
    x = (x < low).select(e.const(x.type, low), x)
    return (x > high).select(e.const(x.type, high), x)


def _scale_and_codes(lanes: Lanes, grid: Grid) -> None:
    run = lanes.run()
    inverse_scale = inverse(lanes.e, lanes.set_half(0, signed_scale(run, grid)))
    with run.each() as j:
        lanes.set_code(j, grid.code(lanes.e, run.x(j) * inverse_scale))


def _minimum_and_codes(lanes: Lanes, spread: Spread) -> None:
    run = lanes.run()
    scale, minimum = scale_and_minimum(run, spread)
    inverse_scale = inverse(lanes.e, lanes.set_half(0, scale))
    minimum = lanes.set_half(2, minimum)
    with run.each() as j:
        q = rounded(clamped(lanes.e, (run.x(j) - minimum) * inverse_scale, 0, spread.top))
        lanes.set_code(j, to_int(q))


def _nibbles(lanes: Lanes, first: int) -> None:
    """Element k low and element k + 16 high."""
    with lanes.e.range(0, HALF) as k:
        low, high = lanes.code(k), lanes.code(k + HALF)
        lanes.set_byte(k + first, (low & 15) | (high << 4))


def _fifth_bits(lanes: Lanes, first: int) -> None:
    with lanes.e.range(0, SIZE // 8) as k:
        byte = lanes.e.const(I32X16, 0)
        for bit in range(8):
            byte = byte | ((lanes.code(k * 8 + bit) >> 4) << bit)
        lanes.set_byte(k + first, byte)
