"""The inner loop of every product: 16 output rows times a few activation rows.

Function `(quants, scales, n_spans, x, x_stride, y, y_stride, n_valid, bias, add)`. The additions of
a row are in the same order whatever other rows are computed beside it: that is what makes a row's
logits independent of its company.
"""

from __future__ import annotations

from collections.abc import Iterator

from llvmlite import ir

from ..emit import F32, I32, I64, VOID, Emitter, Value, Variable, vector
from ..formats.floats import _Floats
from ..formats.tile_format import EVERY_LINE, ROWS, Ahead, CpuTileFormat, Group, Record
from ..formats.unpack import F32X16, I32X16

TILE = ir.FunctionType(VOID, [I64] * 10)
WIDTHS = (1, 2, 4, 6, 8, 16)  # activation rows that have a kernel of their own
AT_ONCE = 8  # rows whose sums fit into the registers, beside the totals of all
FLOAT_SUMS = 2  # of a row with floats, of even and odd elements: one alone would wait for itself


def write_tile(e: Emitter, form: CpuTileFormat, m: int, *, is_split: bool = False) -> None:
    """`is_split`: records have a scale for each half of a block."""
    quants, scales, n_spans, x, _, _, _, _, _, _ = e.parameters
    totals = [e.variable(e.const(F32X16, 0.0)) for _ in range(m)]
    ahead = form.ahead.get(m, EVERY_LINE)
    with e.range(0, n_spans) as i:
        at = quants + i * form.quant_bytes
        records = x + i * (form.span // Record.BLOCK * m * Record.SIZE)
        group_bytes = form.quant_bytes * Record.BLOCK // form.span
        for group in form.groups(e, at, scales + i * form.scale_bytes):
            _prefetch(e, ahead, at + group.block * group_bytes, group_bytes)
            rows = [records + (group.block * m + row) * Record.SIZE for row in range(m)]
            for first in range(0, m, AT_ONCE):
                if m >= AT_ONCE:
                    e.barrier()  # or LLVM mixes groups, and their sums go to memory
                some = slice(first, first + AT_ONCE)
                _add_group(e, group, rows[some], totals[some], is_split=is_split)
    _store(e, [total.get() for total in totals])
    e.finish()


def _prefetch(e: Emitter, ways: tuple[Ahead, ...], address: Value, n_bytes: int) -> None:
    """Group by group: the lines of a whole super-block at a time would wait for each other."""
    for ahead in ways:
        for line in range(0, n_bytes, ahead.every):
            e.prefetch(address + (ahead.distance + line), ahead.level)


def _add_group(
    e: Emitter, group: Group, rows: list[Value], totals: list[Variable], *, is_split: bool
) -> None:
    halves = len(group.scales) == 2
    spans = [(0, 4), (4, 8)] if halves or is_split else [(0, 8)]
    dots = [_dots(e, group, rows, span) for span in spans]
    minima_at = Record.HALF_MINIMA if len(group.minima) == 2 else (Record.MINIMUM,)
    for m, row in enumerate(rows):
        sums = [each[m].to_float(F32X16) for each in dots]
        scales = [e.splat(e.load(F32, row + Record.SCALE))]
        if is_split:
            scales.append(e.splat(e.load(F32, row + Record.SECOND_SCALE)))
        total = _scaled(e, group, sums, scales, totals[m].get())
        for minimum, at in zip(group.minima, minima_at, strict=False):
            total = e.fma(minimum, e.splat(e.load(F32, row + at)), total)
        totals[m].set(total)


def _scaled(
    e: Emitter, group: Group, sums: list[Value], scales: list[Value], total: Value
) -> Value:
    """total + sums, of one or two halves, times scales of weights and of activations."""
    if len(scales) == 1:
        products = sums[0] * group.scales[0]
        if len(sums) == 2:
            products = e.fma(sums[1], group.scales[1], products)
        return e.fma(products, scales[0], total)
    if len(group.scales) == 1:
        products = e.fma(sums[1], scales[1], sums[0] * scales[0])
        return e.fma(products, group.scales[0], total)
    for each, of_weights, scale in zip(sums, group.scales, scales, strict=True):
        total = e.fma(each * of_weights, scale, total)
    return total


def _dots(e: Emitter, group: Group, rows: list[Value], span: tuple[int, int]) -> list[Value]:
    """Integer products of some vectors of the group with each row, zero point included."""
    signed = group.zero == 128 and e.simd.takes_signed
    starts = [_start(e, 0 if signed else group.zero, row, span) for row in rows]

    def terms() -> Iterator[tuple[Value, list[Value]]]:
        for v in range(*span):
            weights = group.vector(v)
            at = [row + (Record.VALUES + 4 * v) for row in rows]
            yield weights ^ -128 if signed else weights, [e.splat(e.load(I32, a)) for a in at]

    pairs = None
    if e.simd.weighs_pairs:
        pairs = [e.splat(e.load(I32, row + Record.WEIGHTS)) for row in rows]
    return e.simd.dots(e, starts, terms(), weight_bits(group), pairs)


def weight_bits(group: Group) -> int:
    """How many bits of a weight's byte are used; formats without a zero point have 5 or fewer."""
    return group.zero.bit_length() or 5


def _start(e: Emitter, zero: int, row: Value, span: tuple[int, int]) -> Value:
    """-zero * sum(x) of a span; the record holds it for the zero points that are met most."""
    if not zero:
        return e.const(I32X16, 0)
    if span == (0, 8):
        sums = [8] if e.simd.weighs_pairs else Record.SUMS
        held = zero if zero in sums else max(sums)
        at = Record.SUMS[held]
    else:
        held, at = Record.HALF_ZERO, Record.HALF_SUMS[span[0] // 4]
    value = e.splat(e.load(I32, row + at))
    shift = zero.bit_length() - held.bit_length()
    return value << shift if shift > 0 else value.shift_signed(-shift) if shift else value


def write_float_tile(e: Emitter, form: _Floats, m: int) -> None:
    ahead = form.ahead.get(m, EVERY_LINE)
    totals: list[Value] = []
    at_once = e.simd.sums_at_once // FLOAT_SUMS
    for first in range(0, m, at_once):  # again through the tile, which is in a cache by then
        totals += _float_rows(e, form, range(first, min(first + at_once, m)), ahead)
        ahead = ()
    _store(e, totals)
    e.finish()


def _float_rows(e: Emitter, form: _Floats, rows: range, ahead: tuple[Ahead, ...]) -> list[Value]:
    quants, _, n_elements, x, x_stride, _, _, _, _, _ = e.parameters
    sums = [[e.variable(e.const(F32X16, 0.0)) for _ in rows] for _ in range(FLOAT_SUMS)]

    def add(index: Value, which: int) -> None:
        weights = form.element(e, quants + index * form.quant_bytes)
        for row, total in zip(rows, sums[which], strict=True):
            value = e.load(F32, x + x_stride * row + index * 4)
            total.set(e.fma(weights, e.splat(value), total.get()))

    piece = max([2, *(each.every // form.quant_bytes for each in ahead)])
    whole, even = (n_elements - n_elements % n for n in (piece, 2))
    with e.range(0, whole, piece) as start:
        _prefetch(e, ahead, quants + start * form.quant_bytes, piece * form.quant_bytes)
        for k in range(0, piece, 2):
            e.barrier()
            add(start + k, 0)
            add(start + (k + 1), 1)
    with e.range(whole, even, 2) as i:
        add(i, 0)
        add(i + 1, 1)
    with e.when(n_elements > even):
        add(even, 0)
    return [a.get() + b.get() for a, b in zip(*sums, strict=True)]


def _store(e: Emitter, totals: list[Value]) -> None:
    """Write (n_valid of) 16 outputs of each row; add bias or what is there already."""
    _, _, _, _, _, y, y_stride, n_valid, bias, add = e.parameters
    results = [e.variable(total) for total in totals]
    with e.when(bias > 0):
        for result in results:
            result.set(result.get() + e.load(vector(F32), bias, 4))
    at = [y + y_stride * m for m in range(len(totals))]
    with e.when(n_valid >= ROWS):
        with e.when(add > 0):
            for result, address in zip(results, at, strict=True):
                result.set(result.get() + e.load(vector(F32), address, 4))
        for result, address in zip(results, at, strict=True):
            e.store(result.get(), address, 4)
    with e.when(n_valid < ROWS):
        for result, address in zip(results, at, strict=True):
            with e.range(0, n_valid) as i:
                one = e.variable(e.lane(result.get(), i.narrow(I32)))
                with e.when(add > 0):
                    one.set(one.get() + e.load(F32, address + i * 4))
                e.store(one.get(), address + i * 4)
