"""Float rows to packed activations: int8 with one scale per 32, and the sums that zero points need.

A NaN or infinity makes the scale of its block NaN, so that it reaches the logits; a block of zeros
has scale 0.
"""

from __future__ import annotations

from ..emit import F32, I8, I32, I64, LANES, Emitter, Value, vector
from ..formats.base import Record
from .mathematics import F32X16, I32X16, round_to_int

SMALLEST = 1e-30  # below this a block counts as zero: 127 / maximum would overflow


def pack_block(e: Emitter, first: Value, second: Value, record: Value) -> None:
    """Two vectors of 16 floats to one record."""
    bits = [(x.bits(I32X16) & 0x7FFFFFFF) for x in (first, second)]
    larger = (bits[0] > bits[1]).select(bits[0], bits[1])
    top = e.call("llvm.vector.reduce.umax.v16i32", I32, larger)
    maximum = top.bits(F32)
    is_zero = maximum < SMALLEST
    zero, nan = e.const(F32, 0.0), e.const(F32, float("nan"))
    inverse = is_zero.select(zero, 127.0 / maximum)
    scale = is_zero.select(zero, maximum * (1 / 127))
    scale = (top >= 0x7F800000).select(nan, scale)
    sums = []
    for half, x in enumerate((first, second)):
        values = round_to_int(x * e.splat(inverse))
        e.store(values.narrow(vector(I8)), record + 16 * half, 16)
        sums.append(e.call("llvm.vector.reduce.add.v16i32", I32, values))
    total = sums[0] + sums[1]
    e.store(scale, record + Record.SCALE)
    e.store(0.0 - scale * total.to_float(F32), record + Record.MINIMUM)
    for zero_point, at in Record.SUMS.items():
        e.store(total * -zero_point, record + at)
    for value, at, minimum_at in zip(sums, Record.HALF_SUMS, Record.HALF_MINIMA, strict=True):
        e.store(value * -Record.HALF_ZERO, record + at)
        e.store(0.0 - scale * value.to_float(F32), record + minimum_at)


class RowSet:
    """Words that describe the rows of a step: how many, and how they are grouped for the products.

    Rows go through the products in groups of some widths (`tile.WIDTHS`); the records of a group
    lie side by side, block after block.
    """

    COUNT, N_GROUPS, GROUPS, START, SIZE = range(5)
    WORDS = 5

    @staticmethod
    def record(e: Emitter, row_set: Value, row: Value, n_blocks: int) -> tuple[Value, Value]:
        """Byte offset of a row's first record, and from each record to the next."""
        start_at = e.load(I64, row_set + 8 * RowSet.START, 8)
        size_at = e.load(I64, row_set + 8 * RowSet.SIZE, 8)
        start = e.load(I64, start_at + row * 8, 8)
        size = e.load(I64, size_at + row * 8, 8)
        first = start * (n_blocks * Record.SIZE) + (row - start) * Record.SIZE
        return first, size * Record.SIZE


def pack_row(
    e: Emitter, source: Value, n_blocks: int, records: Value, row_set: Value, row: Value
) -> None:
    first, stride = RowSet.record(e, row_set, row, n_blocks)
    with e.range(0, n_blocks) as block:
        at = source + block * (4 * Record.BLOCK)
        halves = [e.load(F32X16, at + 4 * LANES * i) for i in (0, 1)]
        pack_block(e, halves[0], halves[1], records + first + block * stride)


def write_pack(e: Emitter, width: int) -> None:
    """Arguments: row set, float rows, records."""
    arguments, part, parts = e.parameters
    row_set, rows, records = e.words(arguments, 3)
    n_blocks = width // Record.BLOCK
    n = e.load(I64, row_set, 8) * n_blocks
    first, last = e.share(n, part, parts)
    with e.range(first, last) as i:
        row, block = i // n_blocks, i % n_blocks
        start, stride = RowSet.record(e, row_set, row, n_blocks)
        at = rows + row * (4 * width) + block * (4 * Record.BLOCK)
        halves = [e.load(F32X16, at + 4 * LANES * k) for k in (0, 1)]
        pack_block(e, halves[0], halves[1], records + start + block * stride)
    e.finish()
