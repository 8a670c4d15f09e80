"""Attention, its second half: which rows attend to which cells, and on which thread.

A unit is a block of neighbouring rows of one sequence and a few query heads that share a key-value
head: they share a pass over its cells. Where there are few units, threads share those with long
contexts span by span, and the last thread puts the spans of a unit together. Neither changes a
number: a row's spans are the same, and folded in the same order, however the work is divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir
from msgspec import Struct

from ..emit import I64, Emitter, Value
from ..formats.tile_format import Record
from .attention_shape import AttentionShape, StepWords
from .mathematics import F32X16
from .pack import RowSet, pack_block
from .spans import LINE, Bundle, Places, Range, SpanWork

HEADS_AT_ONCE = 8  # query heads that share a pass over keys
ROWS_AT_ONCE = (8, 4, 2, 1)  # rows that do, as far as their heads are not too many
MAX_LATENT_QUERIES = 64  # whose scores stay in the second-level cache, beside a span of cells
UNITS_PER_THREAD = 4  # with fewer, long contexts are shared
SHARED_BYTES = 16 << 20  # room for the partials of a step; it is touched as far as it is used
MAX_SHARED_UNITS = 4096  # that have a counter


class Unit(Struct, frozen=True):
    block: AttendedSequence
    kv_head: Value
    head: Value  # the first of its query heads
    row: Value  # the first of its rows
    end: Value
    first_span: Value
    n_spans: Value
    number: Value  # among all units of the step
    spans_before: Value  # of all units before it


class AttendedSequence(Struct, frozen=True):
    """The sequence that a unit belongs to."""

    start: Value  # its first row in the step
    stop: Value
    past: Value
    table: Value


def write_attend(e: Emitter, s: AttentionShape) -> None:
    """Arguments: step, qkv rows, key pages, value pages, sinks or 0, rows out, room for partials,
    counters (zero), records or 0."""
    arguments, part, parts = e.parameters
    words = e.words(arguments, 9)
    work = _Attend(e, s, words)
    plan = work.plan(parts)
    first, last = e.share(plan.n_spans, part, parts)
    for_this = _Mine(plan, part, parts, first, last)
    with work.units(plan) as unit:
        low, high = for_this.spans(e, unit)
        with e.when(low < high):
            work.run(unit, (low, high), plan)
            with e.when(plan.is_shared):
                work.put_together(unit, high - low, plan)
    e.finish()


class Plan(Struct, frozen=True):
    rows: Value  # of a block
    is_shared: Value
    n_spans: Value  # of all units


class _Mine(Struct, frozen=True):
    """What a thread does: every so many units, or a range of all units' spans."""

    plan: Plan
    part: Value
    parts: Value
    first: Value
    last: Value

    def spans(self, e: Emitter, unit: Unit) -> tuple[Value, Value]:
        whole = (unit.number % self.parts).equals(self.part)
        low = e.maximum(self.first - unit.spans_before, 0)
        high = e.minimum(self.last - unit.spans_before, unit.n_spans)
        all_spans = whole.select(unit.n_spans, e.index(0))
        is_shared = self.plan.is_shared
        return is_shared.select(low, e.index(0)), is_shared.select(high, all_spans)


class _Attend:
    def __init__(self, e: Emitter, s: AttentionShape, words: list[Value]) -> None:
        self.e, self.s = e, s
        step_at, self.qkv, self.keys, self.values, self.sinks, self.out = words[:6]
        self.partials, self.counters, self.records = words[6:]
        self.step = e.words(step_at, StepWords.COUNT)
        # All heads of latent attention pass together, so that a cell comes from memory once.
        self.passes = 1 if s.is_latent else -(-s.group // HEADS_AT_ONCE)
        self.heads = -(-s.group // self.passes)
        most = MAX_LATENT_QUERIES if s.is_latent else e.simd.sums_at_once
        widths = [n for n in ROWS_AT_ONCE if n == 1 or n * self.heads <= most]
        self.work = SpanWork(e, s, self.heads, widths)
        self.size = self.work.partial_bytes
        self.unit_bytes = self.work.max_queries * self.size
        lines = self.unit_bytes // LINE
        self.sums, self.new = (e.scratch(ir.ArrayType(I64, 8), lines) for _ in range(2))

    # planning

    def plan(self, parts: Value) -> Plan:
        """Blocks of so many rows that no thread is without work, if there are as many rows."""
        e, per_block = self.e, self.s.n_kv_heads * self.passes
        n_rows = e.load(I64, self.step[StepWords.ROW_SET], 8)
        most, rows = n_rows * per_block // parts, e.index(1)
        for width in reversed(self.work.widths):
            rows = (most >= width).select(e.index(width), rows)
        n_blocks, n_spans = e.variable(e.index(0)), e.variable(e.index(0))
        with self._blocks(rows) as (block, row, end):
            n_blocks.set(n_blocks.get() + 1)
            n_spans.set(n_spans.get() + self._spans(block, row, end)[1])
        n_units, all_spans = n_blocks.get() * per_block, n_spans.get() * per_block
        # One thread does not share; nor is there sharing beyond the room for partials.
        is_shared = (
            (n_units < parts * UNITS_PER_THREAD)
            & (n_units < all_spans)
            & (all_spans * self.unit_bytes <= SHARED_BYTES)
            & (n_units <= MAX_SHARED_UNITS)
            & (parts > 1)
        )
        return Plan(rows, is_shared, all_spans)

    @contextmanager
    def _blocks(self, rows: Value) -> Iterator[tuple[AttendedSequence, Value, Value]]:
        """Each block of each sequence: its first row, and where it ends."""
        e, step = self.e, self.step
        with e.range(0, step[StepWords.N_SEQUENCES]) as b:
            start = e.load(I64, step[StepWords.STARTS] + b * 8, 8)
            stop = e.load(I64, step[StepWords.STARTS] + b * 8 + 8, 8)
            past = e.load(I64, step[StepWords.PAST] + b * 8, 8)
            table = step[self.s.table_word] + b * step[StepWords.PAGES_STRIDE]
            block = AttendedSequence(start, stop, past, table)
            with e.range(0, (stop - start + rows - 1) // rows) as i:
                row = start + i * rows
                yield block, row, e.minimum(row + rows, stop)

    def _spans(self, block: AttendedSequence, row: Value, end: Value) -> tuple[Value, Value]:
        """The first span that rows [row, end) see, and how many there are."""
        first = self._first_cell(self._cell(block, row)) // self.s.span
        return first, self._last_cell(block, end - 1) // self.s.span - first + 1

    @staticmethod
    def _cell(block: AttendedSequence, row: Value) -> Value:
        return block.past + (row - block.start)

    def _first_cell(self, own: Value) -> Value:
        """That a row sees whose own cell is this one."""
        first = self.e.minimum(own, 1) if self.s.hides_first else self.e.index(0)
        if not self.s.window:
            return first
        if self.s.chunked:
            return self.e.maximum(own - own % self.s.window, first)
        return self.e.maximum(own - (self.s.window - 1), first)

    def _last_cell(self, block: AttendedSequence, row: Value) -> Value:
        if not self.s.causal:
            return self._cell(block, block.stop - 1)
        if not self.s.bidirectional:
            return self._cell(block, row)
        return self._cell(block, row) + self.e.load(I64, self.step[StepWords.AHEAD] + row * 8, 8)

    @contextmanager
    def units(self, plan: Plan) -> Iterator[Unit]:
        e, s = self.e, self.s
        number, spans = e.variable(e.index(0)), e.variable(e.index(0))
        with self._blocks(plan.rows) as (block, row, end):
            first_span, n_spans = self._spans(block, row, end)
            with e.range(0, s.n_kv_heads * self.passes) as i:
                kv_head, turn = i // self.passes, i % self.passes
                # The last pass over a group that does not divide evenly repeats a few heads.
                in_group = e.minimum(turn * self.heads, s.group - self.heads)
                yield Unit(
                    block, kv_head, kv_head * s.group + in_group, row, end, first_span, n_spans,
                    number.get(), spans.get(),
                )  # fmt: skip
                number.set(number.get() + 1)
                spans.set(spans.get() + n_spans)

    # working

    def run(self, unit: Unit, spans: tuple[Value, Value], plan: Plan) -> None:
        """The unit's rows, in as wide bundles as there are."""
        e = self.e
        row = e.variable(unit.row)
        with e.repeat_while() as leave_if:
            left = unit.end - row.get()
            leave_if(left < 1)
            width = e.index(1)
            for each in reversed(self.work.widths):
                width = (left >= each).select(e.index(each), width)
            self._run_bundle(unit, row.get(), width, spans, plan)
            row.set(row.get() + width)

    def _run_bundle(
        self, unit: Unit, row: Value, width: Value, spans: tuple[Value, Value], plan: Plan
    ) -> None:
        e, s, n_bytes = self.e, self.s, width * (self.heads * self.size)
        is_alone = plan.is_shared.equals(0)
        q = self._query(row, unit.head)
        self.work.prepare(Bundle(width, q, lambda _: Range(e.index(0), e.index(0))))
        with e.when(is_alone), e.range(0, n_bytes, self.size) as at:
            self.work.empty(self.sums + at)
        with e.range(*spans) as i:
            span = unit.first_span + i
            bundle = Bundle(width, q, lambda k: self._sees(unit.block, row + k, span))
            following = e.minimum(span + 1, unit.first_span + spans[1] - 1)
            after = self._places(unit, following)
            next_keys = after.keys + e.load(I64, after.table, 8) * s.key_page_bytes
            partials = plan.is_shared.select(self._partial(unit, row, i), self.new)
            self.work.run(bundle, self._places(unit, span), partials, next_keys)
            with e.when(is_alone):
                self._fold(bundle)
        with e.when(is_alone), e.range(0, width) as k, e.range(0, self.heads) as head:
            at = self.sums + (k * self.heads + head) * self.size
            self._finish(unit, row + k, head, at)

    def _fold(self, bundle: Bundle) -> None:
        e, per_row = self.e, self.heads * self.size
        with e.range(0, bundle.n_rows) as k:
            cells = bundle.sees(k)
            with (
                e.when(cells.begin < cells.end),
                e.range(k * per_row, (k + 1) * per_row, self.size) as at,
            ):
                self.work.fold(self.sums + at, self.new + at)

    def put_together(self, unit: Unit, n_done: Value, plan: Plan) -> None:
        """The thread that finishes the last span of a unit folds all of them."""
        e, counter = self.e, self.counters + unit.number * 8
        pointer = e.builder.inttoptr(counter.v, ir.PointerType())
        before = Value(e.builder, e.builder.atomic_rmw("add", pointer, n_done.v, "acq_rel"))
        with e.when((before + n_done).equals(unit.n_spans)):
            e.store(e.index(0), counter, 8)
            with e.range(unit.row, unit.end) as row:
                own = self._cell(unit.block, row)
                first = self._first_cell(own) // self.s.span - unit.first_span
                last = self._last_cell(unit.block, row) // self.s.span - unit.first_span
                with e.range(0, self.heads) as head:
                    self.work.empty(self.sums)
                    with e.range(first, last + 1) as span:
                        at = self._partial(unit, row, span) + head * self.size
                        self.work.fold(self.sums, at)
                    self._finish(unit, row, head, self.sums)

    def _partial(self, unit: Unit, row: Value, span: Value) -> Value:
        """Where the partials of a row begin that several threads share."""
        unit_at = self.partials + (unit.spans_before + span) * self.unit_bytes
        return unit_at + (row - unit.row) * (self.heads * self.size)

    def _sees(self, block: AttendedSequence, row: Value, span: Value) -> Range:
        base, own = span * self.s.span, self._cell(block, row)
        begin = self.e.maximum(self._first_cell(own) - base, 0)
        end = self._last_cell(block, row) + 1
        return Range(begin, self.e.minimum(end - base, self.s.span))

    def _places(self, unit: Unit, span: Value) -> Places:
        table = unit.block.table + span * (8 * self.s.span // self.s.page_len)
        keys = self.keys + unit.kv_head * self.work.key_cells.head_bytes
        return Places(table, keys, self.values + unit.kv_head * self.work.value_cells.head_bytes)

    def _query(self, row: Value, head: Value) -> Value:
        return self.qkv + row * (4 * self.s.width) + head * (4 * self.s.q_head)

    def _gate(self, row: Value, head: Value) -> Value:
        if self.s.head_gates:
            return self.qkv + row * (4 * self.s.width) + (head + self.s.gates_at) * 4
        return self._query(row, head) + 4 * self.s.key_dim

    def _finish(self, unit: Unit, row: Value, head: Value, partial: Value) -> None:
        s, head = self.s, unit.head + head
        target = self.out + row * (4 * s.n_heads * s.value_dim) + head * (4 * s.value_dim)
        self.work.finish(partial, self._gate(row, head), target, self.sinks + head * 4)
        if s.packs:
            with self.e.when(self.records > 0):
                self._pack(row, head, target)

    def _pack(self, row: Value, head: Value, source: Value) -> None:
        e, in_head = self.e, self.s.value_dim // Record.BLOCK
        row_set, n_blocks = self.step[StepWords.ROW_SET], self.s.n_heads * in_head
        start, stride = RowSet.record(e, row_set, row, n_blocks)
        with e.range(0, in_head) as block:
            at = source + block * (4 * Record.BLOCK)
            halves = [e.load(F32X16, at + LINE * k) for k in (0, 1)]
            record = self.records + start + (head * in_head + block) * stride
            pack_block(e, halves[0], halves[1], record)
