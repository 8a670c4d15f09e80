"""Gated DeltaNet: convolution, gates, then the recurrence with replay of pending factors.

The state of a value head is [Dv / 16][Dk][16]: 16 value elements are the lanes, and tiles of 16 do
not depend on each other, so one tile (8 KB at Dk = 128) goes through all rows of a step while it is
in the first-level cache. An update is `fma(u, k, g * S)` wherever it is made, in the run and in the
replay, which is why both leave the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ...layers import DeltaRule, DeltaShape, HeadOrder
from ..emit import F32, I64, LANES, Emitter, Value, Variable
from .attention import StepWords
from .mathematics import F32X16, exp, one, reciprocal_sqrt, sigmoid, silu, softplus
from .rows import norm_row

CHAINS = 4  # sums in flight while a row of the state is read


@dataclass(frozen=True, slots=True)
class DeltaKernelShape(DeltaShape):
    """All that the kernels of one layer are specialised for."""

    order: HeadOrder
    eps: float
    window: int

    @classmethod
    def of(cls, delta: DeltaRule, window: int) -> DeltaKernelShape:
        s = delta.shape
        sizes = (s.n_key_heads, s.n_value_heads, s.head_dim, s.kernel)
        return cls(*sizes, delta.order, delta.norm.eps, window)

    @property
    def conv_rows(self) -> int:
        return self.kernel - 1 + self.window


def write_convolve(e: Emitter, s: DeltaKernelShape) -> None:
    """Depthwise convolution and silu of each channel; moves the ring of raw inputs on.

    The ring holds kernel - 1 rows that precede the window, then the window's own. Its rows are
    always read before they are overwritten: writing never gets ahead of reading.
    Arguments: step, rows in, weights [kernel][channels], rings, rows out (channels wide).
    """
    arguments, part, parts = e.parameters
    step_at, rows, weights, rings, out = e.words(arguments, 5)
    step = e.words(step_at, StepWords.COUNT)
    blocks = s.channels // LANES
    first, last = e.share(step[StepWords.N_SEQUENCES] * blocks, part, parts)
    with e.range(first, last) as unit:
        b, channel = unit // blocks, unit % blocks * (4 * LANES)
        ring = rings + _of(e, step, StepWords.SLOTS, b) * (4 * s.conv_rows * s.channels) + channel
        start, end = _of(e, step, StepWords.STARTS, b), _of(e, step, StepWords.STARTS, b + 1)
        history = _ring_history(e, s, step, b, start, ring)
        n_final = e.maximum(end - start - s.window, 0)  # rows that cannot be rejected
        for j, value in enumerate(history):
            _keep(e, s, ring, j - n_final, value.get())
        w = [e.load(F32X16, weights + channel + 4 * s.channels * j) for j in range(s.kernel)]
        with e.range(start, end) as row:
            new = e.load(F32X16, rows + row * (4 * s.width) + channel)
            total = history[0].get() * w[0]
            for j in range(1, s.kernel - 1):
                total = e.fma(history[j].get(), w[j], total)
            total = e.fma(new, w[-1], total)
            e.store(silu(e, total), out + row * (4 * s.channels) + channel)
            for older, newer in pairwise(history):
                older.set(newer.get())
            history[-1].set(new)
            _keep(e, s, ring, row - start + (s.kernel - 1) - n_final, new)
    e.finish()


def _ring_history(
    e: Emitter, s: DeltaKernelShape, step: list[Value], b: Value, start: Value, ring: Value
) -> list[Variable]:
    """The kernel - 1 inputs before the first row; zeros where a text begins."""
    replay = _of(e, step, StepWords.REPLAY, b)
    history = []
    for j in range(s.kernel - 1):
        at = ring + (replay + j) * (4 * s.channels)
        history.append(e.variable(e.load(F32X16, at)))
    with e.when(_of(e, step, StepWords.POSITIONS, start).equals(0)):
        for value in history:
            value.set(e.const(F32X16, 0.0))
    return history


def _keep(e: Emitter, s: DeltaKernelShape, ring: Value, index: Value, value: Value) -> None:
    with e.when(index >= 0):
        e.store(value, ring + index * (4 * s.channels))


def write_gates(e: Emitter, s: DeltaKernelShape) -> None:
    """Unit-length q (times 1 / sqrt(D)) and k in place, k . q, decay and beta of each value head.

    Arguments: step, rows in, convolved rows, a, dt bias, out per row [Hk] k.q, [Hv] decay, beta.
    """
    arguments, part, parts = e.parameters
    step_at, rows, mixed, a, bias, gates = e.words(arguments, 6)
    step = e.words(step_at, StepWords.COUNT)
    n_rows = e.load(I64, step[StepWords.ROW_SET], 8)
    first, last = e.share(n_rows, part, parts)
    with e.range(first, last) as row:
        at, gate = mixed + row * (4 * s.channels), gates + row * (4 * gate_width(s))
        with e.range(0, s.n_key_heads) as head:
            q = at + head * (4 * s.head_dim)
            k = q + 4 * s.key_width
            _unit(e, q, s, s.head_dim**-0.5)
            _unit(e, k, s, 1.0)
            total = e.variable(e.const(F32X16, 0.0))
            with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
                total.set(e.fma(e.load(F32X16, q + i), e.load(F32X16, k + i), total.get()))
            e.store(e.sum_lanes(total.get()), gate + head * 4)
        source = rows + row * (4 * s.width) + 4 * (s.channels + s.value_width)
        with e.range(0, 4 * s.n_value_heads, 4) as i:
            beta, alpha = e.load(F32, source + i), e.load(F32, source + 4 * s.n_value_heads + i)
            rate = one(e, softplus, alpha + e.load(F32, bias + i))
            decay = gate + 4 * s.n_key_heads + i
            e.store(one(e, exp, e.load(F32, a + i) * rate), decay)
            e.store(one(e, sigmoid, beta), decay + 4 * s.n_value_heads)
    e.finish()


def gate_width(s: DeltaKernelShape) -> int:
    return s.n_key_heads + 2 * s.n_value_heads


def _unit(e: Emitter, x: Value, s: DeltaKernelShape, scale: float) -> None:
    total = e.variable(e.const(F32X16, 0.0))
    with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
        v = e.load(F32X16, x + i)
        total.set(e.fma(v, v, total.get()))
    factor = e.splat(reciprocal_sqrt(e, e.sum_lanes(total.get()) + s.eps) * scale)
    with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
        e.store(e.load(F32X16, x + i) * factor, x + i)


def write_recurrence(e: Emitter, s: DeltaKernelShape) -> None:
    """Replay, then the rows of the step; gated norm of what comes out.

    Arguments: step, rows in, convolved rows, gates, states, key factors, update factors, decays,
    norm weight, rows out.
    """
    arguments, part, parts = e.parameters
    words = e.words(arguments, 10)
    step = e.words(words[0], StepWords.COUNT)
    work = _Recurrence(e, s, step, words)
    first, last = e.share(step[StepWords.N_SEQUENCES] * s.n_key_heads, part, parts)
    with e.range(first, last) as unit:
        work.run(unit // s.n_key_heads, unit % s.n_key_heads)
    e.finish()


class _Recurrence:
    """One sequence and one key head, with all value heads that use it."""

    def __init__(
        self, e: Emitter, s: DeltaKernelShape, step: list[Value], words: list[Value]
    ) -> None:
        self.e, self.s, self.step = e, s, step
        (_, self.rows, self.mixed, self.gates, self.states, self.key_factors, self.updates,
         self.decays, self.norm, self.out) = words  # fmt: skip
        self.scratch = e.scratch(F32X16, s.head_dim)

    def run(self, b: Value, key_head: Value) -> None:
        e, s = self.e, self.s
        slot = _of(e, self.step, StepWords.SLOTS, b)
        start = _of(e, self.step, StepWords.STARTS, b)
        end = _of(e, self.step, StepWords.STARTS, b + 1)
        fresh = _of(e, self.step, StepWords.POSITIONS, start).equals(0)
        replay = _of(e, self.step, StepWords.REPLAY, b)
        keys = self.key_factors + slot * (4 * s.window * s.key_width) + key_head * (4 * s.head_dim)
        pending = start + e.maximum(end - start - s.window, 0)  # first row that may be rejected
        share = s.n_value_heads // s.n_key_heads
        with e.range(0, share) as j:
            grouped = s.order is HeadOrder.GROUPED
            head = key_head * share + j if grouped else key_head + j * s.n_key_heads
            self._head(slot, head, key_head, (start, pending, end), (fresh, replay, keys))
        # Only now: all value heads have replayed the old keys.
        with e.range(pending, end) as row:
            k = self._mixed(row, s.key_width) + key_head * (4 * s.head_dim)
            to = keys + (row - pending) * (4 * s.key_width)
            with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
                e.store(e.load(F32X16, k + i), to + i)

    def _mixed(self, row: Value, first: int) -> Value:
        return self.mixed + row * (4 * self.s.channels) + 4 * first

    def _head(
        self,
        slot: Value,
        head: Value,
        key_head: Value,
        rows: tuple[Value, Value, Value],
        old: tuple[Value, Value, Value],
    ) -> None:
        e, s = self.e, self.s
        start, pending, end = rows
        fresh, replay, keys = old
        decays = self.decays + slot * (4 * s.window * s.n_value_heads) + head * 4
        with e.range(0, s.head_dim // LANES) as tile:
            lanes = head * (4 * s.head_dim) + tile * (4 * LANES)
            state = self.states + slot * (4 * s.value_width * s.head_dim)
            state = state + head * (4 * s.head_dim**2) + tile * (4 * LANES * s.head_dim)
            updates = self.updates + slot * (4 * s.window * s.value_width) + lanes
            with e.when(fresh), e.range(0, 64 * s.head_dim, 64) as i:
                e.store(e.const(F32X16, 0.0), state + i, 64)
            with e.when(replay > 0):
                self._replay(state, keys, updates, decays, replay)
            at = (head, key_head, lanes)
            with e.range(start, pending) as row:
                self._row(row, state, state, at, None)
            with e.range(pending, end) as row:
                kept = updates + (row - pending) * (4 * s.value_width)
                source = row.equals(pending).select(state, self.scratch)
                self._row(row, source, self.scratch, at, (kept, row + 1 < end))
        with e.range(pending, end) as row:
            to = decays + (row - pending) * (4 * s.n_value_heads)
            e.store(e.load(F32, self._decay(row, head)), to)
        with e.range(start, end) as row:
            self._gated_norm(row, head)

    def _decay(self, row: Value, head: Value) -> Value:
        return self.gates + row * (4 * gate_width(self.s)) + 4 * self.s.n_key_heads + head * 4

    def _replay(self, state: Value, keys: Value, updates: Value, decays: Value, n: Value) -> None:
        """Each vector of the state meets all factors while it is in a register."""
        e, s = self.e, self.s
        with e.range(0, s.head_dim) as d:
            value = e.variable(e.load(F32X16, state + d * 64, 64))
            with e.range(0, n) as t:
                u = e.load(F32X16, updates + t * (4 * s.value_width))
                k = e.splat(e.load(F32, keys + t * (4 * s.key_width) + d * 4))
                decay = e.splat(e.load(F32, decays + t * (4 * s.n_value_heads)))
                value.set(_advance(e, value.get(), decay, u, k))
            e.store(value.get(), state + d * 64, 64)

    def _row(
        self,
        row: Value,
        source: Value,
        target: Value,
        at: tuple[Value, Value, Value],
        kept: tuple[Value, Value] | None,
    ) -> None:
        """One row of one tile. `kept`: where its factor goes, and whether another row follows."""
        e, s = self.e, self.s
        head, key_head, lanes = at
        q = self._mixed(row, 0) + key_head * (4 * s.head_dim)
        k = q + 4 * s.key_width
        memory, read = self._read(source, k, q)
        gate = self.gates + row * (4 * gate_width(s))
        decay_at = gate + 4 * s.n_key_heads + head * 4
        decay = e.splat(e.load(F32, decay_at))
        beta = e.splat(e.load(F32, decay_at + 4 * s.n_value_heads))
        v = e.load(F32X16, self._mixed(row, 2 * s.key_width) + lanes)
        u = (v - decay * memory) * beta
        overlap = e.splat(e.load(F32, gate + key_head * 4))
        result = e.fma(u, overlap, decay * read)  # S_t q = g S q + u (k . q)
        e.store(result, self.out + row * (4 * s.value_width) + lanes)
        if kept is None:
            self._update(source, target, decay, u, k)
            return
        e.store(u, kept[0])
        with e.when(kept[1]):
            self._update(source, target, decay, u, k)

    def _read(self, state: Value, k: Value, q: Value) -> tuple[Value, Value]:
        """S k and S q of 16 value elements."""
        e = self.e
        zero = e.const(F32X16, 0.0)
        sums = [[e.variable(zero) for _ in range(CHAINS)] for _ in range(2)]
        with e.range(0, self.s.head_dim, CHAINS) as d:
            for c in range(CHAINS):
                value = e.load(F32X16, state + (d + c) * 64, 64)
                for x, total in ((k, sums[0][c]), (q, sums[1][c])):
                    wide = e.splat(e.load(F32, x + (d + c) * 4))
                    total.set(e.fma(value, wide, total.get()))
        added = [(a.get() + b.get()) + (c.get() + d.get()) for a, b, c, d in sums]
        return added[0], added[1]

    def _update(self, source: Value, target: Value, decay: Value, u: Value, k: Value) -> None:
        e = self.e
        with e.range(0, self.s.head_dim) as d:
            value = e.load(F32X16, source + d * 64, 64)
            wide = e.splat(e.load(F32, k + d * 4))
            e.store(_advance(e, value, decay, u, wide), target + d * 64, 64)

    def _gated_norm(self, row: Value, head: Value) -> None:
        e, s = self.e, self.s
        at = self.out + row * (4 * s.value_width) + head * (4 * s.head_dim)
        z = self.rows + row * (4 * s.width) + 4 * s.channels + head * (4 * s.head_dim)
        norm_row(e, at, self.norm, s.head_dim, s.eps, at)
        with e.range(0, 4 * s.head_dim, 4 * LANES) as i:
            e.store(e.load(F32X16, at + i) * silu(e, e.load(F32X16, z + i)), at + i)


def _advance(e: Emitter, state: Value, decay: Value, update: Value, key: Value) -> Value:
    """The one way in which a state moves on."""
    return e.fma(update, key, decay * state)


def _of(e: Emitter, step: list[Value], word: int, index: Value) -> Value:
    return e.load(I64, step[word] + index * 8, 8)
