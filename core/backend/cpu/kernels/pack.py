"""Float rows to packed activations: int8 with one scale per 32, and the sums that zero points need.

Where the instruction set weighs pairs, one half of each 32 has a scale of its own: the step of both
is a small multiple of the block's. That halves the distance of a model's output from the exact one
(docs/experiments.md).

A NaN or infinity makes the scale of its block NaN, so that it reaches the logits; a block of zeros
has scale 0.
"""

from __future__ import annotations

from ..emit import F32, I8, I32, I64, LANES, Emitter, Value, vector
from ..formats.tile_format import Record
from .mathematics import F32X16, I32X16, ROUND, ROUND_BITS, round_to_int

F32X8, I32X8 = vector(F32, 8), vector(I32, 8)
MOST_WEIGHT = 255.0  # sums of 32 products of a 4-bit weight times it are exact as float32
SMALLEST = 1e-30  # below this a block counts as zero: 127 / maximum would overflow


def pack_block(
    e: Emitter, first: Value, second: Value, record: Value, *, weighed: bool = True
) -> None:
    """Two vectors of 16 floats to one record, which is stored as one line."""
    largest = _largest(e, first, second)
    weights = None
    if weighed and e.simd.weighs_pairs:
        scale, inverse, weights = _weighed_scales(e, largest)
    else:
        scale, inverse = _scales(e, largest)
    halves = _rounded(e, (first, second), (inverse, inverse))
    packed = _bytes(e, halves)
    if weights is not None:
        times = e.choose(weights, weights, [*range(8)] * 2)
        halves = [half * times for half in halves]
    words = _words(e, _sums(e, halves), scale)
    if weights is not None:
        both = weights + (e.choose(weights, weights, [2] * 8) << 16)
        words = _with_word(e, words, Record.WEIGHTS, both)
    e.store(e.choose(packed, words, list(range(LANES))), record, 16)


def pack_split_block(e: Emitter, first: Value, second: Value, record: Value) -> None:
    """As `pack_block`, with a scale for each of the two vectors."""
    found = [_scales(e, _largest(e, half, half)) for half in (first, second)]
    scales = [scale for scale, _ in found]
    halves = _rounded(e, (first, second), tuple(inverse for _, inverse in found))
    words = _words(e, _sums(e, halves), *scales)
    words = _with_word(e, words, Record.SECOND_SCALE, scales[1].bits(I32X8))
    e.store(e.choose(_bytes(e, halves), words, list(range(LANES))), record, 16)


def _rounded(e: Emitter, halves: tuple[Value, Value], inverses: tuple[Value, ...]) -> list[Value]:
    wide = [e.choose(inverse, inverse, [*range(8)] * 2) for inverse in inverses]
    return [round_to_int(x * times) for x, times in zip(halves, wide, strict=True)]


def _bytes(e: Emitter, halves: list[Value]) -> Value:
    """The first half of a record."""
    values = [half.narrow(vector(I8)) for half in halves]
    return e.choose(values[0], values[1], list(range(Record.BLOCK))).bits(I32X8)


def _largest(e: Emitter, first: Value, second: Value) -> Value:
    """Of the elements with numbers 0 to 3 (mod 4), the bits of the largest size; in 8 lanes."""
    bits = [(x.bits(I32X16) & 0x7FFFFFFF) for x in (first, second)]
    larger = (bits[0] > bits[1]).select(bits[0], bits[1])
    low, high = e.half_of(larger, 0, 8), e.half_of(larger, 8, 8)
    top = (low > high).select(low, high)
    return _larger(e, top, 4)


def _larger(e: Emitter, top: Value, distance: int) -> Value:
    other = e.choose(top, top, [lane ^ distance for lane in range(8)])
    return (top > other).select(top, other)


def _scales(e: Emitter, largest: Value) -> tuple[Value, Value]:
    """What one step of int8 is worth, and its inverse, in all of 8 lanes."""
    top = _larger(e, _larger(e, largest, 2), 1)
    maximum = top.bits(F32X8)
    is_zero = maximum < SMALLEST
    zero, nan = e.const(F32X8, 0.0), e.const(F32X8, float("nan"))
    scale = is_zero.select(zero, maximum * (1 / 127))
    return (top >= 0x7F800000).select(nan, scale), is_zero.select(zero, 127.0 / maximum)


def _weighed_scales(e: Emitter, largest: Value) -> tuple[Value, Value, Value]:
    """What 1 is worth, the inverse of a step, and the steps' weights, by element in 8 lanes."""
    of_pairs = _larger(e, largest, 1)
    top = _larger(e, of_pairs, 2)
    maximum = top.bits(F32X8)
    is_zero = maximum < SMALLEST
    zero, nan = e.const(F32X8, 0.0), e.const(F32X8, float("nan"))
    # Rounded up, so that no value needs more than 127 steps; 0 for a pair of nothing.
    parts = of_pairs.bits(F32X8) * (MOST_WEIGHT / maximum) + 0.4999
    found = (parts + ROUND).bits(I32X8) - ROUND_BITS
    one = e.const(I32X8, 1)
    weights = is_zero.select(one, (found < 1).select(one, found))
    per_step = 127.0 * MOST_WEIGHT / maximum / weights.to_float(F32X8)
    scale = is_zero.select(zero, maximum * (1 / (127 * MOST_WEIGHT)))
    return (top >= 0x7F800000).select(nan, scale), is_zero.select(zero, per_step), weights


def _sums(e: Emitter, halves: list[Value]) -> Value:
    """Of the first 16 values in lanes 0 to 3, of the others in lanes 4 to 7."""
    first, second = (e.half_of(x, 0, 8) + e.half_of(x, 8, 8) for x in halves)
    low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    sums = e.choose(first, second, low) + e.choose(first, second, high)
    for distance in (2, 1):
        sums = sums + e.choose(sums, sums, [lane ^ distance for lane in range(8)])
    return sums


def _words(e: Emitter, sums: Value, scale: Value, second_scale: Value | None = None) -> Value:
    """The second half of a record: the scale of its first values, and what is made of the sums."""
    other = [lane ^ 4 for lane in range(8)]
    total = sums + e.choose(sums, sums, other)
    if second_scale is None:
        whole_minimum, minima = (0.0 - scale * x.to_float(F32X8) for x in (total, sums))
    else:
        scales = e.choose(scale, second_scale, [0, 1, 2, 3, 12, 13, 14, 15])
        minima = 0.0 - scales * sums.to_float(F32X8)
        whole_minimum = minima + e.choose(minima, minima, other)
    lanes, times = [0] * 8, [0] * 8
    for zero_point, at in Record.SUMS.items():
        times[Record.word(at)] = -zero_point
    for half, places in enumerate(zip(Record.HALF_SUMS, Record.HALF_MINIMA, strict=True)):
        for at in places:
            lanes[Record.word(at)] = 8 + 4 * half
        times[Record.word(places[0])] = -Record.HALF_ZERO
    whole = e.choose(total, sums, lanes) * e.table(I32X8, times)
    floats = e.choose(whole_minimum, minima, lanes).bits(I32X8)
    words = e.choose(whole, floats, [lane if times[lane] else 8 + lane for lane in range(8)])
    return _with_word(e, words, Record.SCALE, scale.bits(I32X8))


def _with_word(e: Emitter, words: Value, place: int, word: Value) -> Value:
    at = Record.word(place)
    return e.choose(words, word, [8 if lane == at else lane for lane in range(8)])


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


def write_pack(e: Emitter, width: int, *, split: bool = False) -> None:
    """Arguments: row set, float rows, records. `split`: with a scale for each half of a block."""
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
        pack = pack_split_block if split else pack_block
        pack(e, halves[0], halves[1], records + start + block * stride)
    e.finish()
