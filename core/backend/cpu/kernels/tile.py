"""The inner loop of every product: 16 output rows times a few activation rows.

Function `(quants, scales, n_spans, x, x_stride, y, y_stride, n_valid, bias, add)`. The additions of
a row are in the same order whatever other rows are computed beside it: that is what makes a row's
logits independent of its company.
"""

from __future__ import annotations

from collections.abc import Iterator

from llvmlite import ir

from ..emit import F32, I32, I64, VOID, Emitter, Value, Variable, vector
from ..formats.base import ROWS, Group, Record, TileFormat
from ..formats.floats import _Floats
from ..formats.unpack import F32X16, I32X16

TILE = ir.FunctionType(VOID, [I64] * 10)
WIDTHS = (1, 4, 8, 16)  # activation rows that have a kernel of their own
PREFETCH_BYTES = 4096  # how far ahead of the weights in use


def write_tile(e: Emitter, form: TileFormat, m: int) -> None:
    quants, scales, n_spans, x, _, _, _, _, _, _ = e.parameters
    totals = [e.variable(e.const(F32X16, 0.0)) for _ in range(m)]
    with e.range(0, n_spans) as i:
        at = quants + i * form.quant_bytes
        for line in range(0, form.quant_bytes, 64):
            e.prefetch(at + (PREFETCH_BYTES + line))
        records = x + i * (form.span // Record.BLOCK * m * Record.SIZE)
        for group in form.groups(e, at, scales + i * form.scale_bytes):
            _add_group(e, group, records + group.block * (m * Record.SIZE), totals)
    _store(e, [total.get() for total in totals])
    e.finish()


def _add_group(e: Emitter, group: Group, records: Value, totals: list[Variable]) -> None:
    rows = [records + Record.SIZE * m for m in range(len(totals))]
    halves = group.multipliers is not None or len(group.scales) == 2
    spans = [(0, 4), (4, 8)] if halves else [(0, 8)]
    sums = Record.HALF_SUMS if halves else (Record.SUM,)
    dots = [_dots(e, group, rows, span, at) for span, at in zip(spans, sums, strict=True)]
    if group.multipliers is not None:
        a, b = group.multipliers
        dots = [[x * a + y * b for x, y in zip(*dots, strict=True)]]
    for m, row in enumerate(rows):
        scale_x = e.splat(e.load(F32, row + Record.SCALE))
        total = totals[m].get()
        for dot, scale in zip(dots, group.scales, strict=True):
            total = e.fma(dot[m].to_float(F32X16) * scale, scale_x, total)
        if group.minimum is not None:
            total = e.fma(group.minimum, e.splat(e.load(F32, row + Record.MINIMUM)), total)
        if group.half_minima is not None:
            a, b, scale = group.half_minima
            first, second = (e.splat(e.load(I32, row + at)) for at in Record.HALF_SUMS)
            total = e.fma((first * a + second * b).to_float(F32X16) * scale, scale_x, total)
        totals[m].set(total)


def _dots(
    e: Emitter, group: Group, rows: list[Value], span: tuple[int, int], sum_at: int
) -> list[Value]:
    """Integer products of some vectors of the group with each row, zero point included."""
    signed = group.zero == 128 and e.simd.takes_signed
    starts = [_start(e, 0 if signed else group.zero, row + sum_at) for row in rows]

    def terms() -> Iterator[tuple[Value, list[Value]]]:
        for v in range(*span):
            weights = group.vector(v)
            at = [row + (Record.VALUES + 4 * v) for row in rows]
            yield weights ^ -128 if signed else weights, [e.splat(e.load(I32, a)) for a in at]

    return e.simd.dots(e, starts, terms(), weight_bits(group))


def weight_bits(group: Group) -> int:
    """How many bits of a weight's byte are used; formats without a zero point have 5 or fewer."""
    return group.zero.bit_length() or 5


def _start(e: Emitter, zero: int, address: Value) -> Value:
    """-zero * sum(x): the record holds it for 128."""
    if not zero:
        return e.const(I32X16, 0)
    shift = 7 - (zero.bit_length() - 1)
    return e.splat(e.load(I32, address)).shift_signed(shift)


def write_float_tile(e: Emitter, form: _Floats, m: int) -> None:
    """Two sums per row, of even and odd elements: one alone would wait for itself."""
    quants, _, n_elements, x, x_stride, _, _, _, _, _ = e.parameters
    sums = [[e.variable(e.const(F32X16, 0.0)) for _ in range(m)] for _ in range(2)]

    def add(index: Value, which: int) -> None:
        weights = form.element(e, quants + index * form.quant_bytes)
        for row, total in enumerate(sums[which]):
            value = e.load(F32, x + x_stride * row + index * 4)
            total.set(e.fma(weights, e.splat(value), total.get()))

    even = n_elements - n_elements % 2
    with e.range(0, even, 2) as i:
        e.prefetch(quants + i * form.quant_bytes + PREFETCH_BYTES)
        add(i, 0)
        add(i + 1, 1)
    with e.when(n_elements > even):
        add(even, 0)
    _store(e, [a.get() + b.get() for a, b in zip(*sums, strict=True)])
    e.finish()


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
