"""Gated DeltaNet as one kernel: a key head, with the value heads that use it, goes all the way.

Convolution, gates, replay, recurrence, gated norm and packing of one sequence and one key head
depend on no other, so that threads need not meet in between.
"""

from __future__ import annotations

from ..emit import F32, LANES, Emitter, Value
from ..formats.tile_format import Record
from .attention_shape import StepWords
from .convolution import VECTOR, Ring, convolve
from .delta_parts import DeltaKernelShape, DeltaPart, DeltaWords, value_head
from .mathematics import F32X16, exp, one, reciprocal_sqrt, sigmoid, silu, softplus
from .pack import RowSet, pack_block
from .recurrence import Recurrence
from .row_kernels import norm_row
from .sequence_part import without_smallest


def write_delta(e: Emitter, s: DeltaKernelShape) -> None:
    """MIXED (by key head, `mixed_width`) and GATES (`gate_width`) hold what is in between."""
    arguments, part, parts = e.parameters
    words = e.words(arguments, DeltaWords.COUNT)
    step = e.words(words[DeltaWords.STEP], StepWords.COUNT)
    recurrence = Recurrence(e, s, words)
    first, last = e.share(step[StepWords.N_SEQUENCES] * s.n_key_heads, part, parts)
    with e.range(first, last) as unit:
        at = DeltaPart.of_unit(e, s, words, unit)
        with e.range(0, 2 + s.heads_per_key) as place:
            _convolve(e, s, at, words, (_channel(s, at.key_head, place), place))
        with e.range(at.start, at.end) as row:
            _gates(e, s, words, row, at)
        with e.range(0, s.heads_per_key) as j:
            head = value_head(s, at.key_head, j)
            recurrence.run(at, (head, j))
            with e.range(at.start, at.end) as row:
                values = at.query(s, row) + (j + 2) * (4 * s.head_dim)
                _gated_norm(e, s, (words, step), row, (head, values))
        recurrence.keep_keys(at)  # only now: all value heads have replayed the old ones
    e.finish()


def _convolve(
    e: Emitter,
    s: DeltaKernelShape,
    at: DeltaPart,
    words: list[Value],
    head: tuple[Value, Value],
) -> None:
    """Convolution and silu of a head, all rows: its first channel, its place in a row."""
    first, place = head
    out = at.mixed + place * (4 * s.head_dim)
    ring = Ring.of(s, words[DeltaWords.RING], words[DeltaWords.CONV], s.window)
    with e.range(0, 4 * s.head_dim, VECTOR) as i:
        channel = first * 4 + i
        source, to = words[DeltaWords.ROWS] + channel, out + i
        convolve(
            e,
            ring,
            at,
            channel,
            lambda row: e.load(F32X16, source + row * (4 * s.width)),
            lambda row, total: e.store(silu(e, total), to + row * (4 * s.mixed_width)),
        )


def _channel(s: DeltaKernelShape, key_head: Value, place: Value) -> Value:
    """The first channel of what lies in a place of a row: q, k, values."""
    value = value_head(s, key_head, place - 2) * s.head_dim + 2 * s.key_width
    return (place < 2).select(key_head * s.head_dim + place * s.key_width, value)


def _gates(e: Emitter, s: DeltaKernelShape, words: list[Value], row: Value, at: DeltaPart) -> None:
    """Unit-length q (times 1 / sqrt(D)) and k in place, k . q, decay and beta."""
    q = at.query(s, row)
    k = q + 4 * s.head_dim
    gates = words[DeltaWords.GATES] + row * (4 * s.gate_width)
    _unit(e, q, s, s.head_dim**-0.5)
    _unit(e, k, s, 1.0)
    total = e.variable(e.const(F32X16, 0.0))
    with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
        total.set(e.fma(e.load(F32X16, q + i), e.load(F32X16, k + i), total.get()))
    e.store(e.sum_lanes(total.get()), gates + at.key_head * 4)
    source = words[DeltaWords.ROWS] + row * (4 * s.width) + 4 * s.channels
    if s.has_channel_decays:
        beta = e.load(F32, source + at.key_head * 4)
        e.store(
            one(e, sigmoid, beta), gates + 4 * (s.n_key_heads + s.n_value_heads) + at.key_head * 4
        )
        _channel_decays(e, s, words, row, at)
        return
    source = source + 4 * s.value_width
    with e.range(0, s.heads_per_key) as j:
        i = value_head(s, at.key_head, j) * 4
        beta, alpha = e.load(F32, source + i), e.load(F32, source + 4 * s.n_value_heads + i)
        rate = one(e, softplus, alpha + e.load(F32, words[DeltaWords.BIAS] + i))
        decay = gates + 4 * s.n_key_heads + i
        e.store(one(e, exp, e.load(F32, words[DeltaWords.A] + i) * rate), decay)
        e.store(one(e, sigmoid, beta), decay + 4 * s.n_value_heads)


def _channel_decays(
    e: Emitter, s: DeltaKernelShape, words: list[Value], row: Value, at: DeltaPart
) -> None:
    """The decays of a row and head, and its k and q times these."""
    head = at.key_head * (4 * s.head_dim)
    source = words[DeltaWords.DECAY_ROWS] + row * (4 * s.key_width) + head
    bias = words[DeltaWords.BIAS] + head
    rate = e.splat(e.load(F32, words[DeltaWords.A] + at.key_head * 4))
    q, k, *places = (at.place(s, row, number) for number in (0, 1, 3, 4, 5))
    with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
        wait = softplus(e, e.load(F32X16, source + i) + e.load(F32X16, bias + i))
        decay = without_smallest(e, exp(e, rate * wait))
        of_key, of_query = (decay * e.load(F32X16, x + i) for x in (k, q))
        for place, value in zip(places, (decay, of_key, of_query), strict=True):
            e.store(value, place + i)


def _unit(e: Emitter, x: Value, s: DeltaKernelShape, scale: float) -> None:
    total = e.variable(e.const(F32X16, 0.0))
    with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
        v = e.load(F32X16, x + i)
        total.set(e.fma(v, v, total.get()))
    factor = e.splat(reciprocal_sqrt(e, e.sum_lanes(total.get()) + s.unit_eps) * scale)
    with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
        e.store(e.load(F32X16, x + i) * factor, x + i)


def _gated_norm(
    e: Emitter,
    s: DeltaKernelShape,
    at: tuple[list[Value], list[Value]],
    row: Value,
    of: tuple[Value, Value],
) -> None:
    """norm(x) * silu(z), or sigmoid(z), of one head; packed if `packs`."""
    words, step = at
    head, x = of
    z = words[DeltaWords.ROWS] + row * (4 * s.width) + 4 * s.channels + head * (4 * s.head_dim)
    if s.has_channel_decays:
        z = words[DeltaWords.GATE_ROWS] + row * (4 * s.value_width) + head * (4 * s.head_dim)
    active = sigmoid if s.has_channel_decays else silu
    norm_row(e, x, words[DeltaWords.NORM], s.head_dim, s.eps, x)
    out = words[DeltaWords.OUT]
    target = out + row * (4 * s.value_width) + head * (4 * s.head_dim)

    def gated(i: Value) -> Value:
        return e.load(F32X16, x + i) * active(e, e.load(F32X16, z + i))

    with e.when(out > 0), e.range(0, 4 * s.head_dim, 4 * LANES) as i:
        e.store(gated(i), target + i)
    if not s.packs:
        return
    records, row_set = words[DeltaWords.RECORDS], step[StepWords.ROW_SET]
    n_blocks, in_head = s.value_width // Record.BLOCK, s.head_dim // Record.BLOCK
    with e.when(records > 0):
        first, stride = RowSet.record(e, row_set, row, n_blocks)
        with e.range(0, in_head) as block:
            i = block * (4 * Record.BLOCK)
            record = records + first + (head * in_head + block) * stride
            pack_block(e, gated(i), gated(i + 4 * LANES), record)
