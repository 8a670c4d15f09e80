"""The recurrence of a Mamba-2 layer: replay of pending factors, then the rows of a step.

A state lies as that of a delta rule does (`recurrence.py`): 16 values are the lanes, and tiles of
16 do not depend on each other. What moves a state on does not depend on it here, so several rows
pass a tile at once. Run and replay round alike: `fma(u, k, g * S)` in both.
"""

from __future__ import annotations

from msgspec import Struct

from ..emit import F32, LANES, Emitter, Value
from .mathematics import F32X16
from .recurrence import Factor
from .sequence_part import SequencePart
from .state_space_parts import ScanWords, StateSpaceShape

CHAINS = 2  # sums in flight for each row that reads
AT_ONCE = 4  # factors, or rows, that a pass applies


class ReadingRow(Struct, frozen=True):
    """What one row adds, and the query (address of N floats) that reads the result."""

    factor: Factor
    query: Value


class ScannedHead(Struct, frozen=True):
    """A value head of a sequence, and 16 of its values."""

    at: SequencePart
    number: Value
    key_head: Value
    lanes: Value  # bytes from the head's first value


class Scan:
    def __init__(self, e: Emitter, s: StateSpaceShape, words: list[Value]) -> None:
        self.e, self.s, self.words = e, s, words
        self.scratch = e.scratch(F32X16, s.key_dim)

    def run(self, at: SequencePart, number: Value) -> None:
        """A value head, whose waits and decays are there."""
        e, s, words = self.e, self.s, self.words
        states = words[ScanWords.STATES] + at.slot * (4 * s.state_width)
        key_head = number // s.heads_per_key
        with e.range(0, s.value_dim // LANES) as tile:
            head = ScannedHead(at, number, key_head, tile * (4 * LANES))
            state = states + (number * s.value_dim + tile * LANES) * (4 * s.key_dim)
            with e.when(at.is_fresh), e.range(0, 64 * s.key_dim, 64) as i:
                e.store(e.const(F32X16, 0.0), state + i, 64)
            self._run_tile(head, state)
        with e.range(at.pending, at.end) as row:
            decay = e.load(F32, self._wait(row, number) + 4)
            e.store(decay, self._kept(ScanWords.DECAYS, at, at.kept + (row - at.pending), number))

    def _run_tile(self, head: ScannedHead, state: Value) -> None:
        e, at = self.e, head.at
        # Where the state goes as it becomes final; what may be rejected goes to the scratch.
        stored = at.kept.equals(0).select(state, self.scratch)
        self._first_row(head, state, stored)
        source = e.variable((at.start < at.pending).select(state, self.scratch))
        done = e.variable(at.start + 1)
        with e.repeat_while() as leave_if:
            row = done.get()
            leave_if(row >= at.end)
            is_final = row < at.pending
            n = e.minimum(is_final.select(at.pending, at.end) - row, AT_ONCE)
            target = is_final.select(state, self.scratch)
            for count in range(1, AT_ONCE + 1):
                with e.when(n.equals(count)):
                    self._pass(source.get(), target, head, row, count)
            source.set(target)
            done.set(row + n)

    def _first_row(self, head: ScannedHead, state: Value, stored: Value) -> None:
        """With what is pending before it."""
        e, at = self.e, head.at
        target = (at.start < at.pending).select(state, self.scratch)
        source, done = e.variable(state), e.variable(e.index(0))
        with e.repeat_while() as leave_if:
            leave_if(at.n_pending_accepted - done.get() <= AT_ONCE)
            factors = [self._old(head, done.get() + t) for t in range(AT_ONCE)]
            self._pass(source.get(), None, head, at.start, 0, (factors, stored))
            source.set(stored)
            done.set(done.get() + AT_ONCE)
        for n in range(AT_ONCE + 1):
            with e.when((at.n_pending_accepted - done.get()).equals(n)):
                factors = [self._old(head, done.get() + t) for t in range(n)]
                old = (factors, stored) if n else None
                self._pass(source.get(), target, head, at.start, 1, old)

    def _pass(
        self,
        source: Value,
        target: Value | None,
        head: ScannedHead,
        first: Value,
        n_rows: int,
        old: tuple[list[Factor], Value] | None = None,
    ) -> None:
        """Move a tile on, by `old` factors, leaving that at an address of its own, and by rows from
        `first` on, whose outputs are put."""
        e = self.e
        rows = [self._row(head, first + t) for t in range(n_rows)]
        zero = e.const(F32X16, 0.0)
        sums = [[e.variable(zero) for _ in range(CHAINS)] for _ in rows]
        factors, stored = old or ([], None)
        with e.range(0, self.s.key_dim, CHAINS) as d:
            for c in range(CHAINS):
                value = e.load(F32X16, source + (d + c) * 64, 64)
                for factor in factors:
                    value = self._moved(value, factor, d + c)
                if stored is not None:
                    e.store(value, stored + (d + c) * 64, 64)
                for row, total in zip(rows, sums, strict=True):
                    value = self._moved(value, row.factor, d + c)
                    query = e.splat(e.load(F32, row.query + (d + c) * 4))
                    total[c].set(e.fma(value, query, total[c].get()))
                if target is not None:
                    e.store(value, target + (d + c) * 64, 64)
        for t, total in enumerate(sums):
            self._put(head, first + t, total[0].get() + total[1].get(), rows[t].factor.update)

    def _moved(self, value: Value, factor: Factor, d: Value) -> Value:
        e = self.e
        key = e.splat(e.load(F32, factor.key + d * 4))
        return e.fma(factor.update, key, factor.decay * value)

    def _put(self, head: ScannedHead, row: Value, read: Value, update: Value) -> None:
        """What comes out for a row, and its update, which is kept if it may be rejected."""
        e, s, words = self.e, self.s, self.words
        skip = e.splat(e.load(F32, words[ScanWords.SKIP] + head.number * 4))
        out = words[ScanWords.OUT] + row * (4 * s.value_width)
        out = out + head.number * (4 * s.value_dim) + head.lanes
        e.store(e.fma(skip, e.load(F32X16, self._x(head, row)), read), out)
        at = head.at
        with e.when(row >= at.pending):
            kept = self._kept(ScanWords.UPDATES, at, at.kept + (row - at.pending), head.number)
            e.store(update, kept + head.lanes)

    # factors

    def _row(self, head: ScannedHead, row: Value) -> ReadingRow:
        e, s = self.e, self.s
        wait = self._wait(row, head.number)
        update = e.load(F32X16, self._x(head, row)) * e.splat(e.load(F32, wait))
        key = self._mixed(row) + 4 * s.value_width + head.key_head * (4 * s.key_dim)
        factor = Factor(e.splat(e.load(F32, wait + 4)), update, key)
        return ReadingRow(factor, key + 4 * s.key_width)

    def _old(self, head: ScannedHead, t: Value) -> Factor:
        e, at = self.e, head.at
        decay = e.load(F32, self._kept(ScanWords.DECAYS, at, t, head.number))
        update = self._kept(ScanWords.UPDATES, at, t, head.number) + head.lanes
        key = self._kept(ScanWords.KEYS, at, t, head.key_head)
        return Factor(e.splat(decay), e.load(F32X16, update), key)

    # addresses

    def _mixed(self, row: Value) -> Value:
        return self.words[ScanWords.MIXED] + row * (4 * self.s.channels)

    def _x(self, head: ScannedHead, row: Value) -> Value:
        return self._mixed(row) + head.number * (4 * self.s.value_dim) + head.lanes

    def _wait(self, row: Value, number: Value) -> Value:
        """Of a head: the row's wait, then its decay."""
        return self.words[ScanWords.WAITS] + (row * self.s.n_value_heads + number) * 8

    def _kept(self, which: int, at: SequencePart, t: Value, number: Value) -> Value:
        """Factor t of a head in a table (slots, heads, window, width)."""
        s = self.s
        n_heads, width = {
            ScanWords.KEYS: (s.n_key_heads, s.key_dim),
            ScanWords.UPDATES: (s.n_value_heads, s.value_dim),
            ScanWords.DECAYS: (s.n_value_heads, 1),
        }[which]
        return self.words[which] + ((at.slot * n_heads + number) * s.window + t) * (4 * width)
