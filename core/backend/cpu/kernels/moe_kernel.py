"""Mixture of experts: route rows, sort (row, expert) pairs by expert, multiply, add back by rank.

Rows that chose the same expert share one pass over its weights. Which rows those are changes only
which group a row is multiplied in, never its numbers.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...layers import Gating, Moe
from ..emit import F32, I64, Emitter, Value
from ..formats.tile_format import ROWS, Record
from .expert_groups import STRUCK, strike_out_other_groups
from .mathematics import F32X16, exp, one, sigmoid
from .pack import RowSet
from .product import call_tile
from .row_kernels import copy_floats, each_vector
from .tile import WIDTHS

SMALLEST_SUM = 2.0**-14  # as in the reference


class MoeShape(Struct, frozen=True):
    n_expert: int
    n_used: int
    gating: Gating
    normalise: bool
    scale: float
    has_bias: bool
    n_groups: int
    n_groups_used: int
    expert_scale: bool

    @classmethod
    def of(cls, m: Moe) -> MoeShape:
        return cls(
            m.gate_inp.n_out, m.n_used, m.gating, m.normalise, m.scale, m.probs_bias is not None,
            m.n_groups, m.n_groups_used, m.expert_scale is not None,
        )  # fmt: skip


def write_route(e: Emitter, s: MoeShape) -> None:
    """Best experts of each row. Arguments: row set, router logits (become probabilities),
    selection bias or 0, experts out (int64), weights out, scales of experts or 0."""
    arguments, part, parts = e.parameters
    row_set, logits, bias, experts, weights, expert_scales = e.words(arguments, 6)
    scores = e.scratch(F32, s.n_expert)
    first, last = e.share(e.load(I64, row_set, 8), part, parts)
    with e.range(first, last) as row:
        at = logits + row * (4 * s.n_expert)
        _probabilities(e, s, at)
        with e.range(0, 4 * s.n_expert, 4) as i:
            score = e.load(F32, at + i)
            e.store(score + e.load(F32, bias + i) if s.has_bias else score, scores + i)
        if s.n_groups_used < s.n_groups:
            strike_out_other_groups(e, scores, s.n_expert, s.n_groups, s.n_groups_used)
        chosen, chosen_weights = experts + row * (8 * s.n_used), weights + row * (4 * s.n_used)
        _choose(e, s, scores, at, (chosen, chosen_weights))
        _scale_weights(e, s, chosen_weights)
        if s.expert_scale:
            with e.range(0, s.n_used) as rank:
                factor = e.load(F32, expert_scales + e.load(I64, chosen + rank * 8, 8) * 4)
                to = chosen_weights + rank * 4
                e.store(e.load(F32, to) * factor, to)
    e.finish()


def _probabilities(e: Emitter, s: MoeShape, at: Value) -> None:
    if s.gating is Gating.SOFTMAX:
        _softmax(e, at, s.n_expert)
    elif s.gating is Gating.SIGMOID:
        with e.range(0, 4 * s.n_expert, 4) as i:
            e.store(one(e, sigmoid, e.load(F32, at + i)), at + i)


def _softmax(e: Emitter, at: Value, n: int) -> None:
    top, total = e.variable(e.load(F32, at)), e.variable(e.const(F32, 0.0))
    with e.range(0, 4 * n, 4) as i:
        x = e.load(F32, at + i)
        top.set((x < top.get()).select(top.get(), x))
    with e.range(0, 4 * n, 4) as i:
        x = one(e, exp, e.load(F32, at + i) - top.get())
        e.store(x, at + i)
        total.set(total.get() + x)
    with e.range(0, 4 * n, 4) as i:
        e.store(e.load(F32, at + i) / total.get(), at + i)


def _choose(e: Emitter, s: MoeShape, scores: Value, probs: Value, out: tuple[Value, Value]) -> None:
    """The n_used best scores, best first, the lower expert on ties; each is then struck out."""
    with e.range(0, s.n_used) as rank:
        best, where = e.variable(e.const(F32, STRUCK)), e.variable(e.index(0))
        with e.range(0, s.n_expert) as expert:
            score = e.load(F32, scores + expert * 4)
            with e.when(score > best.get()):
                best.set(score)
                where.set(expert)
        chosen = where.get()
        e.store(e.const(F32, STRUCK), scores + chosen * 4)
        e.store(chosen, out[0] + rank * 8, 8)
        e.store(e.load(F32, probs + chosen * 4), out[1] + rank * 4)


def _scale_weights(e: Emitter, s: MoeShape, at: Value) -> None:
    if s.gating is Gating.SOFTMAX_OF_CHOSEN:
        _softmax(e, at, s.n_used)
    elif s.gating is Gating.SIGMOID_OF_CHOSEN:
        with e.range(0, 4 * s.n_used, 4) as i:
            e.store(one(e, sigmoid, e.load(F32, at + i)), at + i)
    factor = e.variable(e.const(F32, s.scale))
    if s.normalise:
        total = e.variable(e.const(F32, 0.0))
        with e.range(0, 4 * s.n_used, 4) as i:
            total.set(total.get() + e.load(F32, at + i))
        smallest = e.const(F32, SMALLEST_SUM)
        divisor = (total.get() < smallest).select(smallest, total.get())
        factor.set(factor.get() / divisor)
    with e.range(0, 4 * s.n_used, 4) as i:
        e.store(e.load(F32, at + i) * factor.get(), at + i)


class Sorted:
    """Words of the table that `write_sort` fills: pairs in order of expert, and jobs.

    A job is (expert, first pair, group size): one group of rows for the product kernels. PAIR_OF
    gives the place of (row, rank) in the sorted order. The first words are a `RowSet` over the
    pairs.
    """

    JOBS = RowSet.WORDS  # (n, 3) int64
    N_JOBS = RowSet.WORDS + 1
    PAIR_OF = RowSet.WORDS + 2
    COUNTS = RowSet.WORDS + 3  # (n_expert + 1) scratch
    WORDS = RowSet.WORDS + 4


def write_sort(e: Emitter, s: MoeShape) -> None:
    """Counting sort by one thread: there are few pairs. Arguments: row set, experts, table."""
    arguments, part, _ = e.parameters
    row_set, experts, table = e.words(arguments, 3)
    with e.when(part.equals(0)):
        words = e.words(table, Sorted.WORDS)
        n_pairs = e.load(I64, row_set, 8) * s.n_used
        e.store(n_pairs, table + 8 * RowSet.COUNT, 8)
        counts = words[Sorted.COUNTS]
        _count(e, s, experts, n_pairs, counts)
        n_jobs = _make_jobs(e, s, counts, words)
        e.store(n_jobs, table + 8 * Sorted.N_JOBS, 8)
        with e.range(0, n_pairs) as pair:
            at = counts + e.load(I64, experts + pair * 8, 8) * 8
            place = e.load(I64, at, 8)
            e.store(place + 1, at, 8)
            e.store(place, words[Sorted.PAIR_OF] + pair * 8, 8)
    e.finish()


def _count(e: Emitter, s: MoeShape, experts: Value, n_pairs: Value, counts: Value) -> None:
    with e.range(0, s.n_expert) as expert:
        e.store(e.index(0), counts + expert * 8, 8)
    with e.range(0, n_pairs) as pair:
        at = counts + e.load(I64, experts + pair * 8, 8) * 8
        e.store(e.load(I64, at, 8) + 1, at, 8)


def _make_jobs(e: Emitter, s: MoeShape, counts: Value, words: list[Value]) -> Value:
    """Cut each expert's pairs into groups; counts become the first place of each expert."""
    place, n_jobs = e.variable(e.index(0)), e.variable(e.index(0))
    with e.range(0, s.n_expert) as expert:
        left = e.variable(e.load(I64, counts + expert * 8, 8))
        e.store(place.get(), counts + expert * 8, 8)
        with e.repeat_while() as leave_if:
            leave_if(left.get() <= 0)
            size = group_size(e, left.get())
            vocab_subset = e.minimum(left.get(), size)
            job = words[Sorted.JOBS] + n_jobs.get() * 24
            for i, value in enumerate((expert, place.get(), vocab_subset)):
                e.store(value, job + 8 * i, 8)
            with e.range(place.get(), place.get() + vocab_subset) as pair:
                e.store(place.get(), words[RowSet.START] + pair * 8, 8)
                e.store(vocab_subset, words[RowSet.SIZE] + pair * 8, 8)
            place.set(place.get() + vocab_subset)
            left.set(left.get() - vocab_subset)
            n_jobs.set(n_jobs.get() + 1)
    return n_jobs.get()


def group_size(e: Emitter, left: Value) -> Value:
    """The widest kernel that is full: pairs have no room for idle rows beside them."""
    size = e.index(1)
    for width in WIDTHS[1:]:
        size = (left >= width).select(e.index(width), size)
    return size


class SpreadShape(Struct, frozen=True):
    width: int
    packed: bool
    is_split: bool  # see `Record.SECOND_SCALE`
    n_used: int
    weighs: bool  # each copy is multiplied by the weight of its pair


def write_spread(e: Emitter, s: SpreadShape) -> None:
    """Copy each row's activations to its pairs. Arguments: row set, table, source, target,
    weights."""
    arguments, part, parts = e.parameters
    row_set, table, source, target, weights = e.words(arguments, 5)
    pair_of = e.load(I64, table + 8 * Sorted.PAIR_OF, 8)
    row_bytes, n_blocks = 4 * s.width, s.width // Record.BLOCK
    weighed = (*Record.FLOATS, *[Record.SECOND_SCALE] * s.is_split) if s.weighs else ()
    first, last = e.share(e.load(I64, table, 8), part, parts)
    with e.range(first, last) as number:
        row, pair = number // s.n_used, e.load(I64, pair_of + number * 8, 8)
        weight = weights + number * 4
        if not s.packed:
            to_at = target + pair * row_bytes
            copy_floats(e, source + row * row_bytes, to_at, s.width)
            if s.weighs:
                _weigh_row(e, to_at, s.width, e.load(F32, weight))
        else:
            start, stride = RowSet.record(e, row_set, row, n_blocks)
            to_start, to_stride = RowSet.record(e, table, pair, n_blocks)
            with e.range(0, n_blocks) as block:
                to_at = target + to_start + block * to_stride
                copy_floats(e, source + start + block * stride, to_at, Record.SIZE // 4)
                for at in weighed:
                    e.store(e.load(F32, to_at + at) * e.load(F32, weight), to_at + at)
    e.finish()


def _weigh_row(e: Emitter, row: Value, width: int, weight: Value) -> None:
    weights = e.splat(weight)
    each_vector(
        e,
        width,
        lambda at: e.store(e.load(F32X16, row + at) * weights, row + at),
        lambda at: e.store(e.load(F32, row + at) * weight, row + at),
    )


class ExpertWords:
    """Argument words of a product with experts' matrices."""

    TABLE, N_TILES, QUANTS, EXPERT_BYTES, TILE_BYTES = range(5)
    SCALES, EXPERT_SCALE_BYTES, TILE_SCALE_BYTES, N_SPANS = range(5, 9)
    X, X_ROW_BYTES, X_STRIDE, Y, Y_STRIDE, N_OUT, BIAS, EXPERT_BIAS_BYTES = range(9, 17)
    FUNCTIONS = 17
    COUNT = 17 + len(WIDTHS)


def write_expert_product(e: Emitter) -> None:
    """All jobs times all tiles, divided evenly."""
    arguments, part, parts = e.parameters
    p = ExpertWords
    w = e.words(arguments, p.COUNT)
    jobs = e.load(I64, w[p.TABLE] + 8 * Sorted.JOBS, 8)
    n_jobs = e.load(I64, w[p.TABLE] + 8 * Sorted.N_JOBS, 8)
    first, last = e.share(n_jobs * w[p.N_TILES], part, parts)
    with e.range(first, last) as unit:
        job, tile = jobs + unit // w[p.N_TILES] * 24, unit % w[p.N_TILES]
        expert, pair, size = (e.load(I64, job + 8 * i, 8) for i in range(3))
        bias = w[p.BIAS] + expert * w[p.EXPERT_BIAS_BYTES] + tile * (4 * ROWS)
        call_tile(
            e,
            w[p.FUNCTIONS :],
            size,
            [
                w[p.QUANTS] + expert * w[p.EXPERT_BYTES] + tile * w[p.TILE_BYTES],
                w[p.SCALES] + expert * w[p.EXPERT_SCALE_BYTES] + tile * w[p.TILE_SCALE_BYTES],
                w[p.N_SPANS],
                w[p.X] + pair * w[p.X_ROW_BYTES],
                w[p.X_STRIDE],
                w[p.Y] + pair * w[p.Y_STRIDE] + tile * (4 * ROWS),
                w[p.Y_STRIDE],
                w[p.N_OUT] - tile * ROWS,
                (w[p.BIAS] > 0).select(bias, w[p.BIAS]),
                e.index(0),
            ],
        )
    e.finish()


class CombineShape(Struct, frozen=True):
    width: int
    n_used: int
    shared: bool
    gated: bool
    adds: bool  # to what is there already
    weighs: bool  # experts' outputs; else their inputs were


def write_combine(e: Emitter, s: CombineShape) -> None:
    """x += experts' outputs in order of rank, then the shared expert's.

    Arguments: row set, table, weights, pair rows, shared rows, shared gate (one float a row), x.
    """
    arguments, part, parts = e.parameters
    row_set, table, weights, outputs, shared_rows, gate, x = e.words(arguments, 7)
    width, n_used = s.width, s.n_used
    pair_of = e.load(I64, table + 8 * Sorted.PAIR_OF, 8)
    first, last = e.share(e.load(I64, row_set, 8), part, parts)
    with e.range(first, last) as row:
        pairs = [e.load(I64, pair_of + row * (8 * n_used) + 8 * i, 8) for i in range(n_used)]
        factors = [e.load(F32, weights + row * (4 * n_used) + 4 * i) for i in range(n_used)]
        scale = one(e, sigmoid, e.load(F32, gate + row * 4)) if s.gated else None
        target = x + row * (4 * width)

        def add(at: Value, kind: Any, row: Value = row, target: Value = target) -> None:
            def spread(x: Value) -> Value:
                return x if kind is F32 else e.splat(x)

            terms = [e.load(kind, outputs + pair * (4 * width) + at) for pair in pairs]
            if s.weighs:
                terms = [x * spread(factor) for x, factor in zip(terms, factors, strict=True)]
            if s.shared:
                value = e.load(kind, shared_rows + row * (4 * width) + at)
                terms.append(value if scale is None else value * spread(scale))
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            e.store(e.load(kind, target + at) + total if s.adds else total, target + at)

        each_vector(e, width, lambda at: add(at, F32X16), lambda at: add(at, F32))
    e.finish()
