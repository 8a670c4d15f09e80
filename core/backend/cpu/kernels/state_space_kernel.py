"""Mamba-2 as three kernels: convolution of channels, recurrence of heads, gated norm of slices.

All heads of a slice read the same B and C, so that threads meet behind the convolution; and keys
are kept in the last kernel only, when all heads have replayed the old ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..emit import F32, I64, LANES, Emitter, Value
from ..formats.tile_format import Record
from .attention_shape import StepWords
from .convolution import VECTOR, Ring, convolve
from .mathematics import F32X16, exp, one, silu, softplus
from .row_kernels import copy_floats, each_vector, put_block
from .row_norm import NormedRow, NormShape
from .sequence_part import SequencePart, without_smallest
from .state_space_parts import ScanWords, StateSpaceShape
from .state_space_scan import Scan

SliceValue = Callable[[Any, Value], Value]  # by type, and bytes from the slice's first value


def write_convolution(e: Emitter, s: StateSpaceShape) -> None:
    """Arguments: step, rows in, weights (kernel, channels), bias, ring, rows out."""
    arguments, part, parts = e.parameters
    step_at, rows, weights, bias, inputs, out = e.words(arguments, 6)
    step = e.words(step_at, StepWords.COUNT)
    ring, n_vectors = Ring.of(s, inputs, weights, s.window), s.channels // LANES
    first, last = e.share(step[StepWords.N_SEQUENCES] * n_vectors, part, parts)
    with e.range(first, last) as unit:
        at = SequencePart.of(e, step, unit // n_vectors, s.window)
        channel = unit % n_vectors * VECTOR
        source, to = rows + 4 * s.value_width + channel, out + channel
        convolve(
            e,
            ring,
            at,
            channel,
            lambda row: e.load(F32X16, source + row * (4 * s.width)),
            lambda row, total: e.store(silu(e, total), to + row * (4 * s.channels)),
            e.load(F32X16, bias + channel),
        )
    e.finish()


def write_scan(e: Emitter, s: StateSpaceShape) -> None:
    arguments, part, parts = e.parameters
    words = e.words(arguments, ScanWords.COUNT)
    step = e.words(words[ScanWords.STEP], StepWords.COUNT)
    scan = Scan(e, s, words)
    first, last = e.share(step[StepWords.N_SEQUENCES] * s.n_value_heads, part, parts)
    with e.range(first, last) as unit:
        at = SequencePart.of(e, step, unit // s.n_value_heads, s.window)
        head = unit % s.n_value_heads
        with e.range(at.start, at.end) as row:
            _wait(e, s, words, row, head)
        scan.run(at, head)
        with e.range(at.start, at.end) as row:
            _gate(e, s, words, row, head)
    e.finish()


def _wait(e: Emitter, s: StateSpaceShape, words: list[Value], row: Value, head: Value) -> None:
    """softplus(dt + bias), and the decay that it makes."""
    dt = words[ScanWords.ROWS] + row * (4 * s.width) + 4 * (s.value_width + s.channels) + head * 4
    bias = e.load(F32, words[ScanWords.BIAS] + head * 4)
    wait = one(e, _wait_of, e.load(F32, dt) + bias)
    to = words[ScanWords.WAITS] + (row * s.n_value_heads + head) * 8
    e.store(wait, to)
    e.store(one(e, _decay_of, e.load(F32, words[ScanWords.A] + head * 4) * wait), to + 4)


def _wait_of(e: Emitter, x: Value) -> Value:
    return without_smallest(e, softplus(e, x))


def _decay_of(e: Emitter, x: Value) -> Value:
    return without_smallest(e, exp(e, x))


def _gate(e: Emitter, s: StateSpaceShape, words: list[Value], row: Value, head: Value) -> None:
    """y * silu(z) of a head, in place."""
    at = head * (4 * s.value_dim)
    y = words[ScanWords.OUT] + row * (4 * s.value_width) + at
    z = words[ScanWords.ROWS] + row * (4 * s.width) + at
    with e.range(0, 4 * s.value_dim, VECTOR) as i:
        e.store(e.load(F32X16, y + i) * silu(e, e.load(F32X16, z + i)), y + i)


def write_slices(e: Emitter, s: StateSpaceShape, eps: float | None) -> None:
    """The norm of each slice of the values, or without `eps` none; and keys of pending rows.

    Arguments: step, values, weight, convolved rows, keys, rows out or 0, records or 0.
    """
    arguments, part, parts = e.parameters
    step_at, values, weight, mixed, keys, out, records = e.words(arguments, 7)
    step = e.words(step_at, StepWords.COUNT)
    row_set = step[StepWords.ROW_SET]
    first, last = e.share(e.load(I64, row_set, 8) * s.n_key_heads, part, parts)
    with e.range(first, last) as unit:
        row, key_head = unit // s.n_key_heads, unit % s.n_key_heads
        _keep_key(e, s, step, (row, key_head), (mixed, keys))
        in_row = key_head * (4 * s.slice_width)
        source = values + row * (4 * s.value_width) + in_row
        value = _slice(e, s, (source, weight + in_row), eps)
        _put_slice(e, s, value, (out, row_set, records), (row, key_head))
    e.finish()


def _put_slice(
    e: Emitter,
    s: StateSpaceShape,
    value: SliceValue,
    out: tuple[Value, Value, Value],
    of: tuple[Value, Value],
) -> None:
    """As floats, as records, or both. `out`: rows or 0, row set, records or 0."""
    (rows, row_set, records), (row, key_head) = out, of
    target = rows + row * (4 * s.value_width)
    width, in_slice = s.slice_width, s.slice_width // Record.BLOCK
    if packs(s):
        with e.range(0, in_slice) as block:
            halves = [value(F32X16, block * (4 * Record.BLOCK) + 64 * k) for k in (0, 1)]
            place = row, key_head * in_slice + block, s.value_width // Record.BLOCK
            put_block(e, (target, row_set, records), place, halves, rows > 0)
        return
    first = target + key_head * (4 * width)
    each_vector(
        e,
        width,
        lambda at: e.store(value(F32X16, at), first + at),
        lambda at: e.store(value(F32, at), first + at),
    )


def packs(s: StateSpaceShape) -> bool:
    """Blocks of 32 outputs lie within a slice."""
    return s.slice_width % Record.BLOCK == 0


def _slice(
    e: Emitter, s: StateSpaceShape, of: tuple[Value, Value], eps: float | None
) -> SliceValue:
    """The values of a slice, given with the norm's weights for it: normed, or as they are."""
    source, weight = of
    if eps is None:
        return lambda kind, at: e.load(kind, source + at)
    shape = NormShape(s.slice_width, eps)
    return NormedRow(e, shape, source, weight, e.index(0)).at


def _keep_key(
    e: Emitter,
    s: StateSpaceShape,
    step: list[Value],
    of: tuple[Value, Value],
    tables: tuple[Value, Value],
) -> None:
    """Of a row that may be rejected, the key of a key head. `tables`: convolved rows, keys."""
    (row, key_head), (mixed, keys) = of, tables
    b = e.load(I64, step[StepWords.SEQUENCE_OF] + row * 8, 8)
    at = SequencePart.of(e, step, b, s.window)
    with e.when(row >= at.pending):
        source = mixed + row * (4 * s.channels) + 4 * s.value_width + key_head * (4 * s.key_dim)
        t = at.kept + (row - at.pending)
        to = keys + ((at.slot * s.n_key_heads + key_head) * s.window + t) * (4 * s.key_dim)
        copy_floats(e, source, to, s.key_dim)
