"""The K-quants and IQ4_XS. Layouts: core/gguf/blocks_k.py."""

from __future__ import annotations

from ...core.backend.cpu.emit import Emitter
from ...core.backend.cpu.kernels.mathematics import I32X16
from .grids import Codebook, Uniform
from .lanes import Lanes, evenly, sixteen_blocks
from .searches import Spread
from .supers import SIZE, Minima, Runs, scales_and_minima, signed_scales


def write_q2_k(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 84)
    with sixteen_blocks(e, lanes, evenly):
        spread = Spread(3, first=-0.9, step=0.2, count=10, is_below_zero=True)
        found = scales_and_minima(Runs(lanes, 16), spread, 15)
        with e.range(0, 16) as s:
            lanes.set_byte(s, found.scales.int(s) | (found.minima.int(s) << 4))
        _pairs_of_bits(lanes, 16, 0)
        lanes.set_half(80, found.scale)
        lanes.set_half(82, found.minimum)


def write_q4_k(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 144)
    with sixteen_blocks(e, lanes, evenly):
        found = scales_and_minima(Runs(lanes, 8), Spread(15, is_below_zero=True), 63)
        _head_k4(lanes, found)
        _nibble_rows(lanes, 16)


def write_q5_k(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 176)
    with sixteen_blocks(e, lanes, evenly):
        found = scales_and_minima(Runs(lanes, 8), Spread(31, is_below_zero=True), 63)
        _head_k4(lanes, found)
        with e.range(0, 32) as k:
            byte = e.const(I32X16, 0)
            for s in range(8):
                byte = byte | ((lanes.code(k + 32 * s) >> 4) << s)
            lanes.set_byte(k + 16, byte)
        _nibble_rows(lanes, 48)


def write_q3_k(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 110)
    with sixteen_blocks(e, lanes, evenly):
        scale, scales = signed_scales(Runs(lanes, 16), Uniform(4, 0.2, 1.0), -32, 31)
        with e.range(0, 32) as k:
            byte = e.const(I32X16, 0)
            for s in range(8):
                byte = byte | ((lanes.code(k + 32 * s) >> 2) << s)
            lanes.set_byte(k, byte)
        _pairs_of_bits(lanes, 32, 0)
        numbers = [scales.int(s) + 32 for s in range(16)]
        for s in range(8):
            lanes.set_byte(96 + s, (numbers[s] & 15) | ((numbers[s + 8] & 15) << 4))
        for s in range(4):
            high = [(numbers[s + 4 * i] >> 4) << (2 * i) for i in range(4)]
            lanes.set_byte(104 + s, high[0] | high[1] | high[2] | high[3])
        lanes.set_half(108, scale)


def write_q6_k(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 210)
    with sixteen_blocks(e, lanes, evenly):
        scale, scales = signed_scales(Runs(lanes, 16), Uniform(32, 0.5, 1.5), -128, 127)
        for h in range(2):
            with e.range(0, 64) as k:
                low, high = lanes.code(k + 128 * h), lanes.code(k + 128 * h + 64)
                lanes.set_byte(k + 64 * h, (low & 15) | ((high & 15) << 4))
        _pairs_of_bits(lanes, 128, 4)
        with e.range(0, 16) as s:
            lanes.set_byte(s + 192, scales.int(s))
        lanes.set_half(208, scale)


def write_iq4_xs(e: Emitter) -> None:
    lanes = Lanes(e, SIZE, 136)
    with sixteen_blocks(e, lanes, evenly):
        scale, scales = signed_scales(Runs(lanes, 8), Codebook(), -32, 31)
        lanes.set_half(0, scale)
        numbers = [scales.int(s) + 32 for s in range(8)]
        for i in range(2):
            high = [(numbers[4 * i + s] >> 4) << (2 * s) for s in range(4)]
            lanes.set_byte(2 + i, high[0] | high[1] | high[2] | high[3])
        for i in range(4):
            lanes.set_byte(4 + i, (numbers[2 * i] & 15) | ((numbers[2 * i + 1] & 15) << 4))
        with e.range(0, 8) as s, e.range(0, 16) as k:
            at = s * 32 + k
            lanes.set_byte(s * 16 + k + 8, lanes.code(at) | (lanes.code(at + 16) << 4))


def _head_k4(lanes: Lanes, found: Minima) -> None:
    """Scale, minimum, and eight pairs of 6 bits in twelve bytes."""
    lanes.set_half(0, found.scale)
    lanes.set_half(2, found.minimum)
    scales = [found.scales.int(s) for s in range(8)]
    minima = [found.minima.int(s) for s in range(8)]
    for s in range(4):
        lanes.set_byte(4 + s, scales[s] | ((scales[s + 4] >> 4) << 6))
        lanes.set_byte(8 + s, minima[s] | ((minima[s + 4] >> 4) << 6))
        lanes.set_byte(12 + s, (scales[s + 4] & 15) | ((minima[s + 4] & 15) << 4))


def _nibble_rows(lanes: Lanes, first: int) -> None:
    """32 elements low, the next 32 high."""
    for row in range(4):
        with lanes.e.range(0, 32) as k:
            low, high = lanes.code(k + 64 * row), lanes.code(k + 64 * row + 32)
            lanes.set_byte(k + (first + 32 * row), (low & 15) | ((high & 15) << 4))


def _pairs_of_bits(lanes: Lanes, first: int, shift: int) -> None:
    """Two bits of each code, from `shift` on: four rows of 32 in each of two runs of bytes."""
    for h in range(2):
        with lanes.e.range(0, 32) as k:
            byte = lanes.e.const(I32X16, 0)
            for g in range(4):
                code = lanes.code(k + (128 * h + 32 * g))
                byte = byte | (((code >> shift) & 3) << (2 * g))
            lanes.set_byte(k + (first + 32 * h), byte)
