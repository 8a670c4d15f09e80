"""Kernels of LoRA adapters: which rows they are run on, and the scales of these."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..emit import F32, I64, LANES, Emitter, Value
from .attention_shape import StepWords
from .mathematics import F32X16
from .moe_kernel import Sorted
from .pack import RowSet
from .row_kernels import each_vector

_SUMS = 4  # that run side by side


def write_adapter_rows(e: Emitter) -> None:
    """Copies the row sets of a step, or sets of no rows if no sequence follows an adapter.
    Arguments: step, whether slots follow one (int64), copies of both row sets."""
    arguments, part, _ = e.parameters
    step, is_used, rows, out_rows = e.words(arguments, 4)
    with e.when(part.equals(0)):
        slots = e.load(I64, step + 8 * StepWords.SLOTS, 8)
        found = e.variable(e.index(0))
        with e.range(0, e.load(I64, step + 8 * StepWords.N_SEQUENCES, 8)) as sequence:
            slot = e.load(I64, slots + sequence * 8, 8)
            found.set(found.get() | e.load(I64, is_used + slot * 8, 8))
        for word, copy in ((StepWords.ROW_SET, rows), (StepWords.OUT_SET, out_rows)):
            source = e.load(I64, step + 8 * word, 8)
            for each in range(RowSet.WORDS):
                value = e.load(I64, source + 8 * each, 8)
                if each in (RowSet.COUNT, RowSet.N_GROUPS):
                    value = value * found.get()
                e.store(value, copy + 8 * each, 8)
    e.finish()


class InnerWords:
    """Argument words of `write_adapter_inner`."""

    ROW_SET, STEP, X, X_BYTES, A, N_IN, N_RANKS, OUT, SCALES, N_ADAPTERS, ADAPTERS = range(11)
    COUNT = 11


def write_adapter_inner(e: Emitter, *, gathered: bool) -> None:
    """out = (x @ a.T) * scales: of each rank of each row, by the scale that the row's sequence has
    for the rank's adapter. `gathered`: rows are those with logits. A thread has some of the ranks,
    and adds up in an order that does not depend on rows."""
    arguments, part, parts = e.parameters
    w, at = e.words(arguments, InnerWords.COUNT), InnerWords
    n_ranks, width = w[at.N_RANKS], w[at.N_IN] * 4
    slots = e.load(I64, w[at.STEP] + 8 * StepWords.SLOTS, 8)
    sequence_of = e.load(I64, w[at.STEP] + 8 * StepWords.SEQUENCE_OF, 8)
    first, last = e.share(n_ranks, part, parts)
    with e.range(0, e.load(I64, w[at.ROW_SET] + 8 * RowSet.COUNT, 8)) as row:
        slot = _slot_of(e, row, (w[at.STEP], slots, sequence_of), gathered=gathered)
        own = w[at.SCALES] + slot * w[at.N_ADAPTERS] * 4
        x, out = w[at.X] + row * w[at.X_BYTES], w[at.OUT] + row * n_ranks * 4
        with e.range(first, last) as rank:
            adapter = e.load(I64, w[at.ADAPTERS] + rank * 8, 8)
            scale = e.load(F32, own + adapter * 4)
            e.store(_dot(e, x, w[at.A] + rank * width, w[at.N_IN]) * scale, out + rank * 4)
    e.finish()


class ExpertAdapterShape(Struct, frozen=True):
    n_used: int  # experts of a row
    n_ranks: int
    n_in: int
    n_out: int
    of_pairs: bool  # inputs are rows of pairs (row, expert), not of rows
    weighs: bool  # inputs of rows are multiplied by the weights of experts first


def write_expert_adapters(e: Emitter, s: ExpertAdapterShape) -> None:
    """out += (x @ a.T * scales) @ b, of each pair of a row and an expert of its. Arguments: row
    set, table of pairs, experts, weights, step, x, a (expert, rank, input), b (expert, rank,
    output), out and bytes from pair to pair, scales, number of adapters, adapters of ranks."""
    arguments, part, parts = e.parameters
    row_set, table, experts, weights, step, x, a, b, out, out_bytes, scales, n_adapters, of_rank = (
        e.words(arguments, 13)
    )
    slots = e.load(I64, step + 8 * StepWords.SLOTS, 8)
    sequence_of = e.load(I64, step + 8 * StepWords.SEQUENCE_OF, 8)
    pair_of = e.load(I64, table + 8 * Sorted.PAIR_OF, 8)
    n_pairs = e.load(I64, row_set + 8 * RowSet.COUNT, 8) * s.n_used
    first, last = e.share(n_pairs, part, parts)
    with e.range(first, last) as number:
        row, pair = number // s.n_used, e.load(I64, pair_of + number * 8, 8)
        expert = e.load(I64, experts + number * 8, 8)
        own = scales + _slot_of(e, row, (step, slots, sequence_of), gathered=False) * n_adapters * 4
        source = x + (pair if s.of_pairs else row) * (4 * s.n_in)
        weight = e.load(F32, weights + number * 4)
        target = out + pair * out_bytes
        with e.range(0, s.n_ranks) as rank:
            at = expert * s.n_ranks + rank
            scale = e.load(F32, own + e.load(I64, of_rank + rank * 8, 8) * 4)
            inner = _dot(e, source, a + at * (4 * s.n_in), e.index(s.n_in)) * scale
            inner = inner * weight if s.weighs else inner
            _add_times(e, target, b + at * (4 * s.n_out), inner, s.n_out)
    e.finish()


def _add_times(e: Emitter, target: Value, source: Value, factor: Value, width: int) -> None:
    wide = e.splat(factor)

    def add(at: Value, kind: Any, by: Value) -> None:
        added = e.fma(e.load(kind, source + at), by, e.load(kind, target + at))
        e.store(added, target + at)

    each_vector(e, width, lambda at: add(at, F32X16, wide), lambda at: add(at, F32, factor))


def _dot(e: Emitter, x: Value, a: Value, n: Value) -> Value:
    sums = [e.variable(e.const(F32X16, 0.0)) for _ in range(_SUMS)]
    rest = e.variable(e.const(F32, 0.0))
    step = 4 * LANES
    whole, all_ = n // (LANES * _SUMS) * (step * _SUMS), n * 4
    with e.range(0, whole, step * _SUMS) as at:
        for k, total in enumerate(sums):
            here = at + step * k
            total.set(e.fma(e.load(F32X16, x + here), e.load(F32X16, a + here), total.get()))
    with e.range(whole, all_, 4) as at:
        rest.set(e.fma(e.load(F32, x + at), e.load(F32, a + at), rest.get()))
    added = (sums[0].get() + sums[1].get()) + (sums[2].get() + sums[3].get())
    return e.sum_lanes(added) + rest.get()


def _slot_of(e: Emitter, row: Value, step: tuple[Value, Value, Value], *, gathered: bool) -> Value:
    """Of a row, or of a row with logits."""
    words, slots, sequence_of = step
    if gathered:
        row = e.load(I64, e.load(I64, words + 8 * StepWords.OUT_INDEX, 8) + row * 8, 8)
    return e.load(I64, slots + e.load(I64, sequence_of + row * 8, 8) * 8, 8)
