"""Attention over pages: turn and append, then attend. Keys and values are half floats.

A page of one layer holds for each key-value head: keys as [cell / 16][element][cell % 16], so that
16 scores are one vector without sums across lanes, and values as [cell][element]. A row's scores
are worked off in chunks of one page, at absolute cell positions, and merged in their order: the
result does not depend on what else is in the step, nor on how the work is divided.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...layers import Attention, RopePairs
from ..emit import F32, I16, I64, LANES, Emitter, Value, Variable, vector
from .mathematics import F32X16, exp, one, sigmoid
from .rows import norm_row

I16X16 = vector(I16)
HEADS_AT_ONCE = 8  # query heads that share a pass over keys


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """All that the kernels of one attention layer are specialised for."""

    n_heads: int
    n_kv_heads: int
    key_dim: int
    value_dim: int
    n_rot: int
    pairs: RopePairs
    gated: bool
    q_eps: float | None
    k_eps: float | None
    scale: float
    window: int
    sinks: bool
    page_len: int

    @classmethod
    def of(cls, a: Attention, page_len: int) -> AttentionShape:
        return cls(
            a.n_heads, a.n_kv_heads, a.key_dim, a.value_dim,
            2 * len(a.rope.frequencies) if a.rope else 0,
            a.rope.pairs if a.rope else RopePairs.HALVES,
            a.gated,
            a.q_norm.eps if a.q_norm else None,
            a.k_norm.eps if a.k_norm else None,
            a.scale, a.window, a.sinks is not None, page_len,
        )  # fmt: skip

    @property
    def group(self) -> int:
        return self.n_heads // self.n_kv_heads

    @property
    def q_head(self) -> int:
        """Floats from one query head to the next."""
        return self.key_dim * (2 if self.gated else 1)

    @property
    def k_at(self) -> int:
        return self.n_heads * self.q_head

    @property
    def v_at(self) -> int:
        return self.k_at + self.n_kv_heads * self.key_dim

    @property
    def width(self) -> int:
        return self.v_at + self.n_kv_heads * self.value_dim

    @property
    def key_head_bytes(self) -> int:
        """Of one key-value head in one page."""
        return 2 * self.page_len * self.key_dim

    @property
    def value_head_bytes(self) -> int:
        return 2 * self.page_len * self.value_dim

    @property
    def key_page_bytes(self) -> int:
        return self.n_kv_heads * self.key_head_bytes

    @property
    def value_page_bytes(self) -> int:
        return self.n_kv_heads * self.value_head_bytes


class StepWords:
    """What every kernel that knows sequences reads of the step."""

    ROW_SET, N_SEQUENCES, STARTS, SLOTS, PAST, REPLAY, PAGES, PAGES_STRIDE, POSITIONS = range(9)
    SEQUENCE_OF = 9  # for each row
    COUNT = 10


def _cell_of_row(e: Emitter, step: list[Value], row: Value) -> tuple[Value, Value]:
    """The row's own cell number, and the address of its sequence's page table."""
    b = e.load(I64, step[StepWords.SEQUENCE_OF] + row * 8, 8)
    start = e.load(I64, step[StepWords.STARTS] + b * 8, 8)
    past = e.load(I64, step[StepWords.PAST] + b * 8, 8)
    table = step[StepWords.PAGES] + b * step[StepWords.PAGES_STRIDE]
    return past + (row - start), table


def write_append(e: Emitter, s: AttentionShape) -> None:
    """Norm and turn q (in place) and k; put k and v into their cell.

    Arguments: step, qkv rows, q norm, k norm, rope table, key pages, value pages.
    """
    arguments, part, parts = e.parameters
    step_at, qkv, q_norm, k_norm, rope, keys, values = e.words(arguments, 7)
    step = e.words(step_at, StepWords.COUNT)
    n_rows = e.load(I64, step[StepWords.ROW_SET], 8)
    first, last = e.share(n_rows * s.n_kv_heads, part, parts)
    with e.range(first, last) as unit:
        row, kv_head = unit // s.n_kv_heads, unit % s.n_kv_heads
        at = qkv + row * (4 * s.width)
        position = e.load(I64, step[StepWords.POSITIONS] + row * 8, 8)
        angles = rope + position * (4 * s.n_rot)
        with e.range(kv_head * s.group, (kv_head + 1) * s.group) as head:
            q = at + head * (4 * s.q_head)
            if s.q_eps is not None:
                norm_row(e, q, q_norm, s.key_dim, s.q_eps, q)
            _turn(e, q, angles, s)
        k = at + 4 * s.k_at + kv_head * (4 * s.key_dim)
        if s.k_eps is not None:
            norm_row(e, k, k_norm, s.key_dim, s.k_eps, k)
        _turn(e, k, angles, s)
        cell, table = _cell_of_row(e, step, row)
        page, inside = e.load(I64, table + cell // s.page_len * 8, 8), cell % s.page_len
        _store_key(e, k, keys + page * s.key_page_bytes + kv_head * s.key_head_bytes, inside, s)
        v = at + 4 * s.v_at + kv_head * (4 * s.value_dim)
        to = values + page * s.value_page_bytes + kv_head * s.value_head_bytes
        _store_half_row(e, v, to + inside * (2 * s.value_dim), s.value_dim)
    e.finish()


def _turn(e: Emitter, x: Value, angles: Value, s: AttentionShape) -> None:
    """Rotate the first n_rot elements; the table holds all cosines, then all sines."""
    n = s.n_rot // 2
    vectors = s.pairs is RopePairs.HALVES and n % LANES == 0
    kind, step = (F32X16, LANES) if vectors else (F32, 1)
    with e.range(0, n, step) as i:
        cos, sin = e.load(kind, angles + i * 4), e.load(kind, angles + (i + n) * 4)
        if s.pairs is RopePairs.HALVES:
            a_at, b_at = x + i * 4, x + (i + n) * 4
        else:
            a_at, b_at = x + i * 8, x + i * 8 + 4
        a, b = e.load(kind, a_at), e.load(kind, b_at)
        e.store(a * cos - b * sin, a_at)
        e.store(a * sin + b * cos, b_at)


def _store_key(e: Emitter, k: Value, head: Value, inside: Value, s: AttentionShape) -> None:
    """Scatter: element d of 16 neighbouring cells lies together."""
    base = head + inside // LANES * (2 * LANES * s.key_dim) + inside % LANES * 2
    if s.key_dim % LANES:
        with e.range(0, s.key_dim) as d:
            half = e.simd.to_half(e, e.splat(e.load(F32, k + d * 4)))
            e.store(e.lane(half, 0), base + d * (2 * LANES), 2)
        return
    with e.range(0, s.key_dim, LANES) as d:
        halves = e.simd.to_half(e, e.load(F32X16, k + d * 4))
        for lane in range(LANES):
            e.store(e.lane(halves, lane), base + (d + lane) * (2 * LANES), 2)


def _store_half_row(e: Emitter, source: Value, target: Value, width: int) -> None:
    with e.range(0, width - width % LANES, LANES) as d:
        e.store(e.simd.to_half(e, e.load(F32X16, source + d * 4)), target + d * 2, 2)
    with e.range(width - width % LANES, width) as d:
        half = e.simd.to_half(e, e.splat(e.load(F32, source + d * 4)))
        e.store(e.lane(half, 0), target + d * 2, 2)


def write_attend(e: Emitter, s: AttentionShape) -> None:
    """Arguments: step, qkv rows, key pages, value pages, sinks or 0, rows out."""
    arguments, part, parts = e.parameters
    step_at, qkv, keys, values, sinks, out = e.words(arguments, 6)
    step = e.words(step_at, StepWords.COUNT)
    n_rows = e.load(I64, step[StepWords.ROW_SET], 8)
    passes = -(-s.group // HEADS_AT_ONCE)
    heads = -(-s.group // passes)
    work = _Attend(e, s, step, keys, values)
    first, last = e.share(n_rows * (s.n_kv_heads * passes), part, parts)
    with e.range(first, last) as unit:
        row, rest = unit // (s.n_kv_heads * passes), unit % (s.n_kv_heads * passes)
        kv_head, turn = rest // passes, rest % passes
        # The last pass over a group that does not divide evenly repeats a few heads.
        in_group = e.minimum(turn * heads, s.group - heads)
        head = kv_head * s.group + in_group
        q = qkv + row * (4 * s.width) + head * (4 * s.q_head)
        target = out + row * (4 * s.n_heads * s.value_dim) + head * (4 * s.value_dim)
        work.run(row, kv_head, (head, heads), q, (target, sinks))
    e.finish()


class _Attend:
    """One row and a few query heads of one key-value head."""

    def __init__(
        self, e: Emitter, s: AttentionShape, step: list[Value], keys: Value, values: Value
    ) -> None:
        self.e, self.s, self.step, self.keys, self.values = e, s, step, keys, values
        self.scores = e.scratch(F32X16, HEADS_AT_ONCE * s.page_len // LANES)
        self.sums = e.scratch(F32X16, HEADS_AT_ONCE * _vectors(s.value_dim))

    def run(
        self,
        row: Value,
        kv_head: Value,
        heads: tuple[Value, int],
        q: Value,
        targets: tuple[Value, Value],
    ) -> None:
        e, s, n = self.e, self.s, heads[1]
        last, table = _cell_of_row(e, self.step, row)
        start = e.maximum(last - (s.window - 1), 0) if s.window else e.index(0)
        tops = [e.variable(e.const(F32, -3.0e38)) for _ in range(n)]
        totals = [e.variable(e.const(F32, 0.0)) for _ in range(n)]
        self._clear_sums(n)
        with e.range(start // s.page_len, last // s.page_len + 1) as chunk:
            page = e.load(I64, table + chunk * 8, 8)
            n_cells = e.minimum(last + 1 - chunk * s.page_len, s.page_len)
            keys = self.keys + page * s.key_page_bytes + kv_head * s.key_head_bytes
            self._score(q, keys, n, n_cells)
            begin = start - chunk * s.page_len
            kept = [self._weigh(h, tops[h], totals[h], begin, n_cells) for h in range(n)]
            values = self.values + page * s.value_page_bytes + kv_head * s.value_head_bytes
            self._gather(values, kept, n, e.maximum(begin, 0), n_cells)
        for h in range(n):
            self._finish(h, heads[0], tops[h], totals[h], q, targets)

    def _clear_sums(self, n: int) -> None:
        zero = self.e.const(F32X16, 0.0)
        for i in range(n * _vectors(self.s.value_dim)):
            self.e.store(zero, self.sums + 64 * i, 64)

    def _score(self, q: Value, keys: Value, n: int, n_cells: Value) -> None:
        """scores[h][cell] = scale * q_h . k_cell, for whole vectors of cells."""
        e, s = self.e, self.s
        with e.range(0, n_cells, LANES) as cell:
            at = keys + cell * (2 * s.key_dim)
            # Two sums for each head: one alone would wait for itself.
            sums = [[e.variable(e.const(F32X16, 0.0)) for _ in range(n)] for _ in range(2)]
            step = 2 if s.key_dim % 2 == 0 else 1
            with e.range(0, s.key_dim, step) as d:
                for odd in range(step):
                    k = e.simd.from_half(e, e.load(I16X16, at + (d + odd) * (2 * LANES), 2))
                    for h in range(n):
                        x = e.splat(e.load(F32, q + 4 * s.q_head * h + (d + odd) * 4))
                        total = sums[odd][h]
                        total.set(e.fma(k, x, total.get()))
            for h in range(n):
                score = (sums[0][h].get() + sums[1][h].get()) * s.scale
                e.store(score, self.scores + cell * 4 + 4 * s.page_len * h, 64)

    def _weigh(self, h: int, top: Variable, total: Variable, begin: Value, n_cells: Value) -> Value:
        """Scores to weights relative to the best so far; returns what older sums are scaled by."""
        e, s = self.e, self.s
        scores = self.scores + 4 * s.page_len * h
        lanes = e.table(vector(I64), list(range(LANES)))
        lowest = e.const(F32X16, -3.0e38)
        best = e.variable(lowest)
        with e.range(0, n_cells, LANES) as cell:
            index = e.splat(cell) + lanes
            score = e.load(F32X16, scores + cell * 4)
            score = (index < e.splat(n_cells)).select(score, lowest)
            if s.window:
                score = (index < e.splat(begin)).select(lowest, score)
            e.store(score, scores + cell * 4)
            # Written so that a NaN stays: it must reach the logits.
            best.set((score < best.get()).select(best.get(), score))
        new = e.variable(top.get())
        for lane in range(LANES):
            candidate = e.lane(best.get(), lane)
            new.set((candidate < new.get()).select(new.get(), candidate))
        wide = e.splat(new.get())
        weights = e.variable(e.const(F32X16, 0.0))
        with e.range(0, n_cells, LANES) as cell:
            weight = exp(e, e.load(F32X16, scores + cell * 4) - wide)
            e.store(weight, scores + cell * 4)
            weights.set(weights.get() + weight)
        kept = one(e, exp, top.get() - new.get())
        total.set(total.get() * kept + e.sum_lanes(weights.get()))
        top.set(new.get())
        return kept

    def _gather(
        self, values: Value, kept: list[Value], n: int, begin: Value, n_cells: Value
    ) -> None:
        """sums[h] = kept[h] * sums[h] + weights[h] . values."""
        e, s = self.e, self.s
        count, at_once = _vectors(s.value_dim), max(1, 16 // n)
        for first in range(0, count, at_once):
            columns = range(first, min(first + at_once, count))
            sums = {
                (h, j): e.variable(e.load(F32X16, self._sum(h, j)) * e.splat(kept[h]))
                for h in range(n)
                for j in columns
            }
            with e.range(begin, n_cells) as cell:
                row = values + cell * (2 * s.value_dim)
                loaded = [self._value(row, j) for j in columns]
                for h in range(n):
                    weight = e.load(F32, self.scores + cell * 4 + 4 * s.page_len * h)
                    for j, v in zip(columns, loaded, strict=True):
                        total = sums[h, j]
                        total.set(e.fma(v, e.splat(weight), total.get()))
            for (h, j), total in sums.items():
                e.store(total.get(), self._sum(h, j), 64)

    def _value(self, row: Value, j: int) -> Value:
        """16 elements of a value row; the last vector of an odd width is read from further left."""
        e = self.e
        return e.simd.from_half(e, e.load(I16X16, row + 2 * _column(j, self.s.value_dim), 2))

    def _sum(self, h: int, j: int) -> Value:
        return self.sums + 64 * (h * _vectors(self.s.value_dim) + j)

    def _finish(
        self,
        h: int,
        first_head: Value,
        top: Variable,
        total: Variable,
        q: Value,
        targets: tuple[Value, Value],
    ) -> None:
        e, s = self.e, self.s
        target, sinks = targets
        scale = e.variable(e.const(F32, 1.0))
        all_weights = total.get()
        if s.sinks:
            sink = e.load(F32, sinks + (first_head + h) * 4)
            best = top.get()
            new = (sink < best).select(best, sink)
            scale.set(one(e, exp, best - new))
            all_weights = all_weights * scale.get() + one(e, exp, sink - new)
        inverse = e.splat(scale.get() / all_weights)
        for j in range(_vectors(s.value_dim)):
            at = _column(j, s.value_dim)
            result = e.load(F32X16, self._sum(h, j)) * inverse
            if s.gated:
                gate = e.load(F32X16, q + 4 * (s.q_head * h + s.key_dim + at))
                result = result * sigmoid(e, gate)
            e.store(result, target + 4 * (s.value_dim * h + at))


def _vectors(width: int) -> int:
    return -(-width // LANES)


def _column(j: int, width: int) -> int:
    return min(j * LANES, width - LANES)
