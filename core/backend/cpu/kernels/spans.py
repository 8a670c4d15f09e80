"""Attention over one span of cells, and how spans are put together.

A span is a fixed number of cells at a fixed place. Its partial result for a query (one head of one
row) is the sum of weighted values, the highest score, and the sum of the weights relative to that
score. Partials are folded in the order of their spans, whichever thread computed
which: one thread alone, or several that share a long context.

A partial in memory: the vectors of the sum, then a line with the highest score and the total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from ..emit import F32, I32, I64, LANES, Emitter, Value, vector
from .cells import Queries, Sums, columns_of
from .cells_latent import CELLS_AT_ONCE
from .flat import soft_cap
from .mathematics import F32X16, exp, one, sigmoid

if TYPE_CHECKING:
    from .attention_shape import AttentionShape

LOWEST = -3.0e38
LINE = 64


class Places(Struct, frozen=True):
    """Where the keys and values of one key-value head are."""

    table: Value  # of the sequence's pages
    keys: Value
    values: Value


class Range(Struct, frozen=True):
    """Cells [begin, end), relative to a span or a page; perhaps none."""

    begin: Value
    end: Value

    def in_page(self, e: Emitter, start: Value, page_len: int) -> Range:
        def inside(cell: Value) -> Value:
            return e.minimum(e.maximum(cell - start, 0), page_len)

        return Range(inside(self.begin), inside(self.end))


class Bundle(Struct, frozen=True):
    """Neighbouring rows that go through a span together, each with a few heads."""

    n_rows: Value  # one of `SpanWork.widths`
    q: Value  # of the first row and head
    sees: Callable[[Value], Range]  # which cells of the span, by row of the bundle


class SpanWork:
    """Writes the kernel's parts; scratch memory is shared among them."""

    def __init__(self, e: Emitter, s: AttentionShape, heads: int, widths: list[int]) -> None:
        self.e, self.s, self.heads, self.widths = e, s, heads, widths
        self.key_cells, self.value_cells = s.keys(), s.values()
        self.max_queries = heads * max(widths)
        self.columns = columns_of(s.value_dim)
        self.partial_bytes = LINE * (len(self.columns) + 1)
        # One line more, lest all queries' scores fall into the same places of the cache.
        self.score_stride = 4 * s.span + LINE
        self.scores = e.scratch(F32X16, self.max_queries * self.score_stride // LINE)
        packed_bytes = self.max_queries * self.key_cells.packed_bytes
        self.packed = e.scratch(F32X16, max(1, packed_bytes // LINE))

    def prepare(self, bundle: Bundle) -> None:
        """What is done to queries once, before they meet any key."""
        e = self.e
        with e.range(0, bundle.n_rows) as row, e.range(0, self.heads) as head:
            q = bundle.q + row * (4 * self.s.width) + head * (4 * self.s.q_head)
            to = self.packed + (row * self.heads + head) * self.key_cells.packed_bytes
            self.key_cells.pack(e, q, to)

    # one span

    def run(self, bundle: Bundle, places: Places, partials: Value, after: Value) -> None:
        """Partials of all queries, row after row; `after` is the page whose keys come next."""
        e, s, length = self.e, self.s, self.s.page_len
        begin, end = bundle.sees(e.index(0)).begin, bundle.sees(bundle.n_rows - 1).end
        first, last = begin // length, (end + (length - 1)) // length
        with e.range(first, last) as page:
            beyond = self._page(places, e.minimum(page + 1, last - 1))
            keys = places.keys + self._page(places, page) * s.key_page_bytes
            values = places.values + self._page(places, first) * s.value_page_bytes
            ahead = (page + 1 < last).select(places.keys + beyond * s.key_page_bytes, values)
            start = page * length
            cells = Range(begin, end).in_page(e, start, length)
            self._score_page(bundle, (keys, ahead), start, cells)
        self._weigh_all(bundle, partials)
        with e.range(first, last) as page:
            beyond = self._page(places, e.minimum(page + 1, last - 1))
            values = places.values + self._page(places, page) * s.value_page_bytes
            following = places.values + beyond * s.value_page_bytes
            ahead = (page + 1 < last).select(following, after)
            self._gather_page(bundle, page * length, (values, ahead), partials)

    def _score_page(
        self, bundle: Bundle, pages: tuple[Value, Value], start: Value, cells: Range
    ) -> None:
        e, s = self.e, self.s
        if not s.is_latent:
            for width in self.widths:
                with e.when(bundle.n_rows.equals(width)):
                    self._score(self._queries(bundle, width), pages, start, cells, self.scores)
            return
        some = largest_divisor(self.heads, e.simd.sums_at_once // CELLS_AT_ONCE)
        offsets = tuple(4 * s.q_head * head for head in range(some))
        with e.range(0, bundle.n_rows) as row, e.range(0, self.heads, some) as head:
            q = bundle.q + row * (4 * s.width) + head * (4 * s.q_head)
            to = self.scores + (row * self.heads + head) * self.score_stride
            self._score(Queries(q, offsets, self.packed), pages, start, cells, to)

    def _queries(self, bundle: Bundle, width: int) -> Queries:
        s = self.s
        offsets = [
            4 * (s.width * row + s.q_head * head)
            for row in range(width)
            for head in range(self.heads)
        ]
        return Queries(bundle.q, tuple(offsets), self.packed)

    def _page(self, places: Places, index: Value) -> Value:
        return self.e.load(I64, places.table + index * 8, 8)

    def _score(
        self,
        queries: Queries,
        pages: tuple[Value, Value],
        start: Value,
        cells: Range,
        scores: Value,
    ) -> None:
        """Scores of whole vectors of cells of one page, several vectors at once. `scores`: those
        of the first query, for all cells of the span."""
        e = self.e
        at_once = 1 if self.s.is_latent else max(1, e.simd.sums_at_once // len(queries))
        at_once = min(at_once, 4, self.s.page_len // LANES)
        low, high = cells.begin - cells.begin % LANES, cells.end

        def score(cell: Value, n: int) -> None:
            page, ahead = pages
            vectors = self.key_cells.score(e, queries, page, cell, n, ahead)
            for i, sums in enumerate(vectors):
                to = scores + (start + cell) * 4 + LINE * i
                for j, total in enumerate(sums):
                    scaled = total * self.s.scale
                    if self.s.cap:
                        scaled = soft_cap(e, scaled, self.s.cap)
                    e.store(scaled, to + self.score_stride * j, LINE)

        if at_once == 1:
            with e.range(low, high, LANES) as cell:
                score(cell, 1)
            return
        wide = LANES * at_once
        whole = low + (high - low) // wide * wide
        with e.range(low, whole, wide) as cell:
            score(cell, at_once)
        with e.range(whole, high, LANES) as cell:
            score(cell, 1)

    def _weigh_all(self, bundle: Bundle, partials: Value) -> None:
        e = self.e
        with e.range(0, bundle.n_rows) as row:
            cells = bundle.sees(row)
            with e.when(cells.begin < cells.end), e.range(0, self.heads) as head:
                query = row * self.heads + head
                scores = self.scores + query * self.score_stride
                self._weigh(scores, cells, partials + query * self.partial_bytes)

    def _weigh(self, scores: Value, row: Range, partial: Value) -> None:
        """Scores to weights relative to the highest of them."""
        e = self.e
        lanes = e.table(vector(I32), list(range(LANES)))
        lowest = e.const(F32X16, LOWEST)
        best = e.variable(lowest)
        first = row.begin - row.begin % LANES
        with e.range(first, row.end, LANES) as cell:
            index = e.splat(cell.narrow(I32)) + lanes
            score = e.load(F32X16, scores + cell * 4)
            score = (index < e.splat(row.end.narrow(I32))).select(score, lowest)
            if self.s.window or self.s.hides_first:
                score = (index < e.splat(row.begin.narrow(I32))).select(lowest, score)
            e.store(score, scores + cell * 4, LINE)
            best.set(e.larger(best.get(), score))  # a NaN stays: it must reach the logits
        top = e.largest_lane(best.get())
        wide = e.splat(top)
        total = e.variable(e.const(F32X16, 0.0))
        with e.range(first, row.end, LANES) as cell:
            weight = exp(e, e.load(F32X16, scores + cell * 4) - wide)
            e.store(weight, scores + cell * 4, LINE)
            total.set(total.get() + weight)
        self._set(partial, top, e.sum_lanes(total.get()))
        self._clear_sums(partial)

    def _gather_page(
        self, bundle: Bundle, start: Value, pages: tuple[Value, Value], partials: Value
    ) -> None:
        """Cells that all rows see are read once for all; before and after them each row alone.

        Turn n of n rows is for all rows. The turns before it are for what only some rows see of the
        cells before, those after it for the cells after.
        """
        e, n = self.e, bundle.n_rows
        lone, beyond = (bundle.sees(row) for row in (e.index(0), n - 1))
        begin = beyond.begin
        common = Range(begin, e.maximum(lone.end, begin)).in_page(e, start, self.s.page_len)
        with e.range(0, n + n + 1) as turn:
            before, together = turn < n, turn.equals(n)
            row = together.select(e.index(0), before.select(turn, turn - (n + 1)))
            mine = bundle.sees(row).in_page(e, start, self.s.page_len)
            low = before.select(mine.begin, e.maximum(mine.begin, common.end))
            high = before.select(e.minimum(mine.end, common.begin), mine.end)
            low = together.select(common.begin, low)
            high = together.select(common.end, high)
            count = (low < high).select(together.select(n, e.index(1)), e.index(0))
            first = row * self.heads
            for width in self.widths:
                with e.when(count.equals(width)):
                    sums = Sums(
                        self.scores + start * 4 + first * self.score_stride, self.score_stride,
                        partials + first * self.partial_bytes, self.partial_bytes,
                        width * self.heads,
                    )  # fmt: skip
                    self.value_cells.gather(e, sums, pages[0], (low, high), pages[1])

    # putting spans together

    def empty(self, partial: Value) -> None:
        self._set(partial, self.e.const(F32, LOWEST), self.e.const(F32, 0.0))
        self._clear_sums(partial)

    def fold(self, into: Value, partial: Value) -> None:
        """The next span of a query joins those before it."""
        e = self.e
        (top, total), (new_top, new_total) = self._get(into), self._get(partial)
        best = e.larger(top, new_top)
        kept, added = one(e, exp, top - best), one(e, exp, new_top - best)
        with e.range(0, LINE * len(self.columns), LINE) as at:
            new = e.load(F32X16, partial + at, LINE) * e.splat(added)
            e.store(e.fma(e.load(F32X16, into + at, LINE), e.splat(kept), new), into + at, LINE)
        self._set(into, best, e.fma(total, kept, new_total * added))

    def finish(self, partial: Value, gate: Value, target: Value, sink: Value) -> None:
        """One query's output, of all its spans; `gate` and `sink` are addresses of these.

        The gate is one number for each element, or one for the head.
        """
        e, s = self.e, self.s
        top, total = self._get(partial)
        scale = e.const(F32, 1.0)
        if s.sinks:
            logit = e.load(F32, sink)
            best = e.larger(top, logit)
            scale = one(e, exp, top - best)
            total = total * scale + one(e, exp, logit - best)
        inverse = e.splat(scale / total)
        if s.head_gates:
            inverse = inverse * e.splat(one(e, sigmoid, e.load(F32, gate)))
        if s.value_scale != 1.0:
            inverse = inverse * s.value_scale

        def write(at: Value, column: Value) -> None:
            result = e.load(F32X16, partial + at, LINE) * inverse
            if s.gated:
                result = result * sigmoid(e, e.load(F32X16, gate + column * 4))
            e.store(result, target + column * 4)

        if s.value_dim % LANES == 0:
            with e.range(0, s.value_dim, LANES) as column:
                write(column * 4, column)
            return
        for i, start in enumerate(self.columns):
            write(e.index(LINE * i), e.index(start))

    def _clear_sums(self, partial: Value) -> None:
        zero = self.e.const(F32X16, 0.0)
        with self.e.range(0, LINE * len(self.columns), LINE) as at:
            self.e.store(zero, partial + at, LINE)

    def _set(self, partial: Value, top: Value, total: Value) -> None:
        at = partial + LINE * len(self.columns)
        self.e.store(top, at)
        self.e.store(total, at + 4)

    def _get(self, partial: Value) -> tuple[Value, Value]:
        at = partial + LINE * len(self.columns)
        return self.e.load(F32, at), self.e.load(F32, at + 4)


def largest_divisor(n: int, most: int) -> int:
    """Of n, and not above `most`."""
    return max(d for d in range(1, max(most, 1) + 1) if n % d == 0)
