"""Kernels over whole rows: gate times up, copies and choices of rows; and what norms share."""

from __future__ import annotations

from collections.abc import Callable

from ...layers import Gate
from ..emit import F32, I64, LANES, Emitter, Value
from ..formats.tile_format import Record
from .gate_function import gated_product_of
from .mathematics import F32X16, reciprocal_sqrt
from .pack import RowSet, pack_block, pack_split_block


def each_vector(
    e: Emitter,
    width: int,
    body: Callable[[Value], None],
    tail: Callable[[Value], None],
) -> None:
    """Byte offsets of the whole vectors of a row, then of the single floats that remain."""
    whole = width - width % LANES
    if whole:
        with e.range(0, 4 * whole, 4 * LANES) as at:
            body(at)
    if whole < width:
        with e.range(4 * whole, 4 * width, 4) as at:
            tail(at)


def sum_of_squares(e: Emitter, row: Value, width: int) -> Value:
    """One sum per lane, lanes added in a fixed order, then what is left over."""
    total, rest = e.variable(e.const(F32X16, 0.0)), e.variable(e.const(F32, 0.0))

    def body(at: Value) -> None:
        x = e.load(F32X16, row + at)
        total.set(e.fma(x, x, total.get()))

    def tail(at: Value) -> None:
        x = e.load(F32, row + at)
        rest.set(e.fma(x, x, rest.get()))

    each_vector(e, width, body, tail)
    return e.sum_lanes(total.get()) + rest.get()


def norm_scale(e: Emitter, row: Value, width: int, eps: float) -> Value:
    mean = sum_of_squares(e, row, width) * (1.0 / width)
    return reciprocal_sqrt(e, mean + eps)


def norm_row(e: Emitter, row: Value, weight: Value, width: int, eps: float, out: Value) -> None:
    """out = row / sqrt(mean(row^2) + eps) * weight; out may be row."""
    scale = norm_scale(e, row, width, eps)
    wide = e.splat(scale)
    each_vector(
        e,
        width,
        lambda at: e.store(e.load(F32X16, row + at) * wide * e.load(F32X16, weight + at), out + at),
        lambda at: e.store(e.load(F32, row + at) * scale * e.load(F32, weight + at), out + at),
    )


def put_block(
    e: Emitter,
    to: tuple[Value, Value, Value],
    at: tuple[Value, Value, int],
    halves: list[Value],
    as_floats: Value,
    is_split: Value | None = None,
) -> None:
    """32 values of a row as floats, as a record, or both. `to`: float row, row set, records or 0;
    `at`: row, block, blocks of a row. `is_split`: whether each half gets its own scale."""
    target, row_set, records = to
    row, block, n_blocks = at
    with e.when(as_floats):
        for k, half in enumerate(halves):
            e.store(half, target + block * (4 * Record.BLOCK) + 4 * LANES * k)
    with e.when(records > 0):
        start, stride = RowSet.record(e, row_set, row, n_blocks)
        record = records + start + block * stride
        if is_split is None:
            pack_block(e, halves[0], halves[1], record)
        else:
            with e.when(is_split.equals(0)):
                pack_block(e, halves[0], halves[1], record)
            with e.when(is_split > 0):
                pack_split_block(e, halves[0], halves[1], record)


def write_gated(e: Emitter, width: int, gate: Gate) -> None:
    """activation(gate) * up. Arguments: row set, gate rows and bytes from row to row, up rows and
    bytes from row to row, rows out or 0, records or 0."""
    arguments, part, parts = e.parameters
    row_set, gates, gate_bytes, ups, up_bytes, out, records = e.words(arguments, 7)
    step = Record.BLOCK if width % Record.BLOCK == 0 else 1
    n_steps = width // step
    first, last = e.share(e.load(I64, row_set, 8) * n_steps, part, parts)
    with e.range(first, last) as i:
        row, block = i // n_steps, i % n_steps
        x = gates + row * gate_bytes + block * (4 * step)
        up = ups + row * up_bytes + block * (4 * step)
        target = out + row * (4 * width)
        if step == 1:  # a width that no quantised format can have
            halves = [e.splat(e.load(F32, at)) for at in (x, up)]
            e.store(e.lane(gated_product_of(e, gate, *halves), 0), target + block * 4)
        else:
            halves = [
                gated_product_of(e, gate, e.load(F32X16, x + 64 * k), e.load(F32X16, up + 64 * k))
                for k in (0, 1)
            ]
            put_block(e, (target, row_set, records), (row, block, n_steps), halves, out > 0)
    e.finish()


def copy_floats(e: Emitter, source: Value, target: Value, width: int) -> None:
    each_vector(
        e,
        width,
        lambda at: e.store(e.load(F32X16, source + at), target + at),
        lambda at: e.store(e.load(F32, source + at), target + at),
    )


def write_copy(e: Emitter, width: int) -> None:
    """Arguments: row set, rows in, rows out."""
    arguments, part, parts = e.parameters
    row_set, source, target = e.words(arguments, 3)
    first, last = e.share(e.load(I64, row_set, 8), part, parts)
    with e.range(first, last) as row:
        at = row * (4 * width)
        copy_floats(e, source + at, target + at, width)
    e.finish()


def write_gather(e: Emitter, width: int) -> None:
    """Chosen rows. Arguments: row set of the result, indices (int64), rows in, rows out."""
    arguments, part, parts = e.parameters
    row_set, indices, source, target = e.words(arguments, 4)
    first, last = e.share(e.load(I64, row_set, 8), part, parts)
    with e.range(first, last) as row:
        index = e.load(I64, indices + row * 8, 8)
        copy_floats(e, source + index * (4 * width), target + row * (4 * width), width)
    e.finish()


def write_maxima(e: Emitter, width: int, block: int) -> None:
    """The best of each block of a row; NaN if there is one. Arguments: row set, rows, maxima."""
    arguments, part, parts = e.parameters
    row_set, rows, out = e.words(arguments, 3)
    n_blocks = -(-width // block)
    first, last = e.share(e.load(I64, row_set, 8) * n_blocks, part, parts)
    with e.range(first, last) as unit:
        row, start = unit // n_blocks, unit % n_blocks * block
        at = rows + row * (4 * width) + start * 4
        best = e.variable(e.load(F32, at))
        n = e.minimum(width - start, block) if width % block else e.index(block)
        whole = n // LANES * LANES
        with e.when(whole > 0):
            wide = e.variable(e.load(F32X16, at))
            with e.range(LANES, whole, LANES) as i:
                wide.set(e.larger(wide.get(), e.load(F32X16, at + i * 4)))
            best.set(e.largest_lane(wide.get()))
        with e.range(whole, n) as i:
            best.set(e.larger(best.get(), e.load(F32, at + i * 4)))
        e.store(best.get(), out + unit * 4)
    e.finish()
