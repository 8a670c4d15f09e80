"""The delta rule of one value head: replay of pending factors, then the rows of a step.

The state of a value head is [Dv / 16][Dk][16]: 16 value elements are the lanes, and tiles of 16 do
not depend on each other, so one tile (8 KB at Dk = 128) goes through all rows of a step while it is
in the first-level cache. A state moves on by `fma(u, k, g * S)` wherever it does, which is why run
and replay leave the same bits. Each pass over a tile moves it on and reads it for the next row.
"""

from __future__ import annotations

from msgspec import Struct

from ..emit import F32, LANES, Emitter, Value, Variable
from .delta_parts import DeltaKernelShape, DeltaPart, DeltaWords
from .mathematics import F32X16
from .row_kernels import copy_floats

CHAINS = 4  # sums in flight while a row of the state is read
AT_ONCE = 4  # factors that a pass applies


class Factor(Struct, frozen=True):
    """What one row adds: S = fma(update, key, decay * S)."""

    decay: Value  # in all lanes; or the address of Dk floats
    update: Value  # of 16 value elements
    key: Value  # address of Dk floats


class Recurrence:
    def __init__(self, e: Emitter, s: DeltaKernelShape, words: list[Value]) -> None:
        w = DeltaWords
        self.e, self.s = e, s
        self.gates = words[w.GATES]
        self.states, self.keys = words[w.STATES], words[w.KEYS]
        self.updates, self.decays = words[w.UPDATES], words[w.DECAYS]
        self.scratch = e.scratch(F32X16, s.head_dim)
        zero = e.const(F32X16, 0.0)
        self.memory, self.read = e.variable(zero), e.variable(zero)  # S k and S q

    def run(self, at: DeltaPart, of: tuple[Value, Value]) -> None:
        """A value head, given with its number among those that use the key head."""
        e, s = self.e, self.s
        head, j = of
        states = self.states + at.slot * (4 * s.value_width * s.head_dim)
        with e.range(0, s.head_dim // LANES) as tile:
            lanes = tile * (4 * LANES)
            values = at.mixed + (j + 2) * (4 * s.head_dim) + lanes
            state = states + head * (4 * s.head_dim**2) + tile * (4 * LANES * s.head_dim)
            with e.when(at.is_fresh), e.range(0, 64 * s.head_dim, 64) as i:
                e.store(e.const(F32X16, 0.0), state + i, 64)
            # Where the state goes as it becomes final; what may be rejected goes to the scratch.
            stored = at.kept.equals(0).select(state, self.scratch)
            following = state + 4 * LANES * s.head_dim  # of this head, or of the next
            self._replay(at, head, lanes, state, stored)
            source = e.variable(stored)
            update = e.variable(self._finish_row(at, at.start, (head, lanes, values)))
            with e.range(at.start + 1, at.end) as row:
                decay = self._decay_of_row(at, row - 1, head)
                last = Factor(decay, update.get(), self._key(at, row - 1))
                target = (row <= at.pending).select(stored, self.scratch)
                read = self._read_of(at, row)
                self._pass(source.get(), target, [last], row_read=read, ahead=following)
                source.set(target)
                update.set(self._finish_row(at, row, (head, lanes, values)))
        with e.range(at.pending, at.end) as row:
            to = self._pending(self.decays, at, row, (head, s.n_value_heads, s.decay_dim))
            if s.has_channel_decays:
                copy_floats(e, at.place(s, row, 3), to, s.head_dim)
            else:
                e.store(e.load(F32, self._decay(row, head)), to)

    def keep_keys(self, at: DeltaPart) -> None:
        e, s = self.e, self.s
        with e.range(at.pending, at.end) as row:
            source = self._key(at, row)
            to = self._pending(self.keys, at, row, (at.key_head, s.n_key_heads, s.head_dim))
            with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
                e.store(e.load(F32X16, source + i), to + i)

    # addresses

    def _key(self, at: DeltaPart, row: Value) -> Value:
        return at.query(self.s, row) + 4 * self.s.head_dim

    def _read_of(self, at: DeltaPart, row: Value) -> tuple[Value, Value]:
        if self.s.has_channel_decays:
            return at.place(self.s, row, 4), at.place(self.s, row, 5)
        return self._key(at, row), at.query(self.s, row)

    def _decay_of_row(self, at: DeltaPart, row: Value, head: Value) -> Value:
        if self.s.has_channel_decays:
            return at.place(self.s, row, 3)
        return self.e.splat(self.e.load(F32, self._decay(row, head)))

    def _decay(self, row: Value, head: Value) -> Value:
        return self.gates + row * (4 * self.s.gate_width) + 4 * self.s.n_key_heads + head * 4

    def _kept(self, table: Value, at: DeltaPart, t: Value, of: tuple[Value, int, int]) -> Value:
        """Factor t in a table (slots, heads, window, width), of (head, heads, width)."""
        head, n_heads, width = of
        return table + ((at.slot * n_heads + head) * self.s.window + t) * (4 * width)

    def _pending(
        self, table: Value, at: DeltaPart, row: Value, of: tuple[Value, int, int]
    ) -> Value:
        """Where a kind of factor of a row of this step is kept."""
        return self._kept(table, at, row - at.pending + at.kept, of)

    # one tile

    def _replay(
        self, at: DeltaPart, head: Value, lanes: Value, state: Value, stored: Value
    ) -> None:
        """Apply what is pending and read the result for the first row."""
        e, read = self.e, self._read_of(at, at.start)
        with e.when(at.n_pending_accepted.equals(0)):
            self._pass(state, None, [], row_read=read)
        source, done = e.variable(state), e.variable(e.index(0))
        with e.repeat_while() as leave_if:
            leave_if(at.n_pending_accepted - done.get() <= AT_ONCE)
            factors = [self._old(at, head, lanes, done.get() + t) for t in range(AT_ONCE)]
            self._pass(source.get(), stored, factors)
            source.set(stored)
            done.set(done.get() + AT_ONCE)
        for n in range(1, AT_ONCE + 1):
            with e.when((at.n_pending_accepted - done.get()).equals(n)):
                factors = [self._old(at, head, lanes, done.get() + t) for t in range(n)]
                self._pass(source.get(), stored, factors, row_read=read)

    def _old(self, at: DeltaPart, head: Value, lanes: Value, t: Value) -> Factor:
        e, s = self.e, self.s
        update = self._kept(self.updates, at, t, (head, s.n_value_heads, s.head_dim)) + lanes
        key = self._kept(self.keys, at, t, (at.key_head, s.n_key_heads, s.head_dim))
        decay = self._kept(self.decays, at, t, (head, s.n_value_heads, s.decay_dim))
        if not s.has_channel_decays:
            decay = e.splat(e.load(F32, decay))
        return Factor(decay, e.load(F32X16, update), key)

    def _pass(
        self,
        source: Value,
        target: Value | None,
        factors: list[Factor],
        *,
        row_read: tuple[Value, Value] | None = None,
        ahead: Value | None = None,
    ) -> None:
        """Move the tile on by some factors, and leave S k and S q in `memory` and `read`. `ahead`:
        a tile to fetch meanwhile."""
        e = self.e
        zero = e.const(F32X16, 0.0)
        sums = [[e.variable(zero) for _ in range(CHAINS)] for _ in range(2)]
        with e.range(0, self.s.head_dim, CHAINS) as d:
            for c in range(CHAINS):
                value = e.load(F32X16, source + (d + c) * 64, 64)
                if ahead is not None:
                    e.prefetch(ahead + (d + c) * 64)
                for factor in factors:
                    key = e.splat(e.load(F32, factor.key + (d + c) * 4))
                    decay = factor.decay
                    if self.s.has_channel_decays:
                        decay = e.splat(e.load(F32, decay + (d + c) * 4))
                    value = e.fma(factor.update, key, decay * value)
                if target is not None:
                    e.store(value, target + (d + c) * 64, 64)
                for x, total in zip(row_read or (), sums, strict=False):
                    wide = e.splat(e.load(F32, x + (d + c) * 4))
                    total[c].set(e.fma(value, wide, total[c].get()))
        if row_read is not None:
            self.memory.set(_add_up(sums[0]))
            self.read.set(_add_up(sums[1]))

    def _finish_row(self, at: DeltaPart, row: Value, of: tuple[Value, Value, Value]) -> Value:
        """The row's output in the place of v, and its update, kept if it may be rejected."""
        e, s = self.e, self.s
        head, lanes, values = of
        beta = e.splat(e.load(F32, self._decay(row, head) + 4 * s.n_value_heads))
        overlap = e.splat(e.load(F32, self.gates + row * (4 * s.gate_width) + at.key_head * 4))
        v = values + row * (4 * s.mixed_width)
        memory, read = self.memory.get(), self.read.get()
        if not s.has_channel_decays:  # else k and q had the decays in them
            decay = e.splat(e.load(F32, self._decay(row, head)))
            memory, read = decay * memory, decay * read
        u = (e.load(F32X16, v) - memory) * beta
        e.store(e.fma(u, overlap, read), v)  # S_t q = g S q + u (k . q)
        with e.when(row >= at.pending):
            to = self._pending(self.updates, at, row, (head, s.n_value_heads, s.head_dim))
            e.store(u, to + lanes)
        return u


def _add_up(sums: list[Variable]) -> Value:
    a, b, c, d = (total.get() for total in sums)
    return (a + b) + (c + d)
