"""The draft loop: what lies between two walks through a program that continues from its own picks.

`write_begin` lays out the first step, `write_choose` is the last entry of the program: it picks a
token for each row of logits and lays out the step of these tokens. `write_choose_rows` is the last
entry of a program that drafts a block of rows at once.
"""

from __future__ import annotations

import math

from llvmlite import ir

from ... import picking
from ...interface import MAXIMA_BLOCK
from ...step import KEPT_FACTORS
from ..emit import F32, F64, I64, LANES, POINTER, Emitter, Value, vector
from .attention_shape import StepWords
from .fill import Filling, SourceWords
from .mathematics import F32X16, I32X16, ROUND, one, polynomial
from .row_kernels import copy_floats
from .sample import Head, largest, pick_token

BEGIN = ir.FunctionType(I64, [I64])  # words -> positions that the chain may reach, or NO_CELL
LOG2_E, LEAST_EXPONENT = math.log2(math.e), -126.0
# 2^x between -1/2 and 1/2, highest power first: the next term would be 2e-8 there.
TWO_TO_THE = tuple(math.log(2) ** k / math.factorial(k) for k in range(6, -1, -1))
NO_CELL = -1  # a page table is too short


class LoopWords:
    """Argument words of both kernels. First where the program finds its step, and leaves rows."""

    STEP, GIVEN, TAP = range(3)
    LOGITS, LOGITS_BYTES, MAXIMA, SUMS, MAXIMA_BYTES, VOCAB_SUBSET, N_VALUES = range(3, 10)
    WINDOW, AGAIN, ARRIVED, SCRATCH = range(10, 14)
    # By sequence, by row of logits, and the results.
    SETTINGS, ROWS, DRAFTED, CHANCES, COUNTS, MAX_DRAFT, STOPS, N_STOPS = range(14, 22)
    SOURCE = 22  # the step of the call
    UNSURE = 23  # of each sequence, 1: no pick was possible
    COUNT = 24


class SettingsWords:
    """`DraftSettings` of a sequence: address, number, float64, float32."""

    REQUEST, LENGTH, P_MIN, SHARPNESS = range(4)
    COUNT = 4


class RowWords:
    """Of a row of logits: the caller's sequence, its place in the step that runs, and the token
    that it goes on with, or `UNSURE`."""

    SEQUENCE, PLACE, TOKEN = range(3)
    COUNT = 3


class _Loop(Filling):
    """The words of a call, and the arrays of the step that the program reads."""

    def __init__(self, e: Emitter, words_at: Value) -> None:
        self.w = e.words(words_at, LoopWords.COUNT)
        super().__init__(e, self.w[LoopWords.STEP], self.w[LoopWords.SOURCE])

    def setting(self, b: Value, word: int) -> Value:
        return self.w[LoopWords.SETTINGS] + b * (8 * SettingsWords.COUNT) + 8 * word

    def row_word(self, row: Value, word: int) -> Value:
        return self.w[LoopWords.ROWS] + row * (8 * RowWords.COUNT) + 8 * word


# The first step ----------------------------------------------------------------------------------


def write_begin(e: Emitter, hidden_width: int, *, advances: bool) -> None:
    c = _Loop(e, e.parameters[0])
    c.lay_out()
    n_rows, n_sequences = c.source[SourceWords.N_ROWS], c.source[SourceWords.N_SEQUENCES]
    if hidden_width:
        with e.range(0, n_rows * (4 * hidden_width), 4 * hidden_width) as at:
            hidden = c.source[SourceWords.HIDDEN] + at
            copy_floats(e, hidden, c.w[LoopWords.GIVEN] + at, hidden_width)
    n_out, reach, is_whole = (e.variable(e.index(first)) for first in (0, 0, 1))
    with e.range(0, n_sequences) as b:
        length = e.load(I64, c.setting(b, SettingsWords.LENGTH), 8)
        n_cells = c.n_cells(b)
        if advances:
            n_cells = n_cells + e.maximum(length - 1, 0)
        c.copy_pages(b, n_cells)
        room = c.step[StepWords.PAGE_LEN] * c.source[SourceWords.N_PAGES]
        last = c.last_row(b)
        position = c.word(c.step[StepWords.POSITIONS], last)
        reach.set(e.maximum(reach.get(), position + 1 + length))
        with e.when(n_cells > room):
            is_whole.set(e.index(0))
        for word in (LoopWords.COUNTS, LoopWords.UNSURE):
            c.put(e.index(0), c.w[word], b)
        with e.when(length > 0):
            row = n_out.get()
            c.put(last, c.step[StepWords.OUT_INDEX], row)
            e.store(b, c.row_word(row, RowWords.SEQUENCE), 8)
            e.store(b, c.row_word(row, RowWords.PLACE), 8)
            n_out.set(row + 1)
    c.set_rows(StepWords.OUT_SET, n_out.get())
    e.finish((is_whole.get() > 0).select(reach.get(), e.index(NO_CELL)))


# From step to step -------------------------------------------------------------------------------


def write_choose(e: Emitter, hidden_width: int, *, is_short: bool, advances: bool) -> None:
    """Threads share the rows; the last one to finish lays out the next step."""
    words_at, part, parts = e.parameters
    c = _Loop(e, words_at)
    n_rows = e.load(I64, c.step[StepWords.OUT_SET], 8)
    scratch = c.w[LoopWords.SCRATCH] + part * picking.SCRATCH_BYTES
    first, last = e.share(n_rows, part, parts)
    with e.range(first, last) as row:
        _choose(c, row, scratch, is_short=is_short, advances=advances)
    arrived = e.builder.inttoptr(c.w[LoopWords.ARRIVED].v, POINTER)
    before = Value(e.builder, e.builder.atomic_rmw("add", arrived, ir.Constant(I64, 1), "acq_rel"))
    with e.when((before + 1).equals(parts)):
        e.store(e.index(0), c.w[LoopWords.ARRIVED], 8)
        n_left = _follow(c, n_rows, hidden_width, advances=advances)
        e.store((n_left > 0).widen(I64), c.w[LoopWords.AGAIN], 8)
    e.finish()


def _choose(c: _Loop, row: Value, scratch: Value, *, is_short: bool, advances: bool) -> None:
    """A token for a row of logits, if the draft does not end before it."""
    e, w = c.e, c.w
    head, sums = _head_of(w, row, is_short=is_short)
    b = e.load(I64, c.row_word(row, RowWords.SEQUENCE), 8)
    last = c.last_row(e.load(I64, c.row_word(row, RowWords.PLACE), 8))
    position = c.word(c.step[StepWords.POSITIONS], last) + 1
    if not advances:
        position = position + c.word(w[LoopWords.COUNTS], b)
    request = e.load(I64, c.setting(b, SettingsWords.REQUEST), 8)
    best = largest(e, head.maxima, head.n_blocks)
    token = pick_token(e, head, best, (request, scratch, position))
    goes_on = e.variable(e.index(picking.UNSURE))
    with e.when(token < 0):
        c.put(e.index(1), w[LoopWords.UNSURE], b)
    with e.when((token >= 0) & (_stops(c, token) ^ 1)):
        inverse_temperature = e.load(F32, c.setting(b, SettingsWords.SHARPNESS))
        chance = _chance(e, head, (best, sums, inverse_temperature), token)
        with e.when(chance >= e.load(F64, c.setting(b, SettingsWords.P_MIN), 8)):
            n = c.word(w[LoopWords.COUNTS], b)
            at = b * w[LoopWords.MAX_DRAFT] + n
            c.put(token, w[LoopWords.DRAFTED], at)
            e.store(chance, w[LoopWords.CHANCES] + at * 8, 8)
            c.put(n + 1, w[LoopWords.COUNTS], b)
            goes_on_after = n + 1 < e.load(I64, c.setting(b, SettingsWords.LENGTH), 8)
            goes_on.set(goes_on_after.select(token, goes_on.get()))
    e.store(goes_on.get(), c.row_word(row, RowWords.TOKEN), 8)


def _head_of(w: list[Value], row: Value, *, is_short: bool) -> tuple[Head, Value]:
    """A row of logits, and the sums of its blocks."""
    maxima = w[LoopWords.MAXIMA] + row * w[LoopWords.MAXIMA_BYTES]
    sums = w[LoopWords.SUMS] + row * w[LoopWords.MAXIMA_BYTES]
    logits = w[LoopWords.LOGITS] + row * w[LoopWords.LOGITS_BYTES]
    vocab_subset = w[LoopWords.VOCAB_SUBSET] if is_short else None
    return Head(logits, maxima, w[LoopWords.N_VALUES], vocab_subset), sums


def write_choose_rows(e: Emitter, ahead: int, *, is_short: bool) -> None:
    """A token and its chance for each row of logits: `DRAFTED` and `CHANCES` are by row here. Of a
    sequence without a request every row is `UNSURE`."""
    words_at, part, parts = e.parameters
    w = e.words(words_at, LoopWords.COUNT)
    step = e.words(w[LoopWords.STEP], StepWords.COUNT)
    scratch = w[LoopWords.SCRATCH] + part * picking.SCRATCH_BYTES
    first, last = e.share(e.load(I64, step[StepWords.OUT_SET], 8), part, parts)
    with e.range(first, last) as row:
        head, sums = _head_of(w, row, is_short=is_short)
        b = e.load(I64, w[LoopWords.ROWS] + row * (8 * RowWords.COUNT), 8)
        asks = w[LoopWords.SETTINGS] + b * (8 * SettingsWords.COUNT)
        request = e.load(I64, asks + 8 * SettingsWords.REQUEST, 8)
        place = e.load(I64, step[StepWords.OUT_INDEX] + row * 8, 8)
        position = e.load(I64, step[StepWords.POSITIONS] + place * 8, 8) + ahead
        found = e.variable(e.index(picking.UNSURE))
        with e.when(request > 0):
            best = largest(e, head.maxima, head.n_blocks)
            token = pick_token(e, head, best, (request, scratch, position))
            found.set(token)
            with e.when(token >= 0):
                sharp = e.load(F32, asks + 8 * SettingsWords.SHARPNESS)
                chance = _chance(e, head, (best, sums, sharp), token)
                e.store(chance, w[LoopWords.CHANCES] + row * 8, 8)
        e.store(found.get(), w[LoopWords.DRAFTED] + row * 8, 8)
    e.finish()


def _stops(c: _Loop, token: Value) -> Value:
    e = c.e
    found = e.variable(e.const(ir.IntType(1), 0))
    with e.range(0, c.w[LoopWords.N_STOPS]) as i:
        found.set(found.get() | c.word(c.w[LoopWords.STOPS], i).equals(token))
    return found.get()


def _chance(e: Emitter, head: Head, row: tuple[Value, Value, Value], token: Value) -> Value:
    """Softmax: the sums of all blocks, each put in relation to the best logit. `row`: that logit,
    the sums, and what logits are multiplied by."""
    best, sums, inverse_temperature = row
    n, total, sharp = head.n_blocks, e.variable(e.const(F32X16, 0.0)), e.splat(inverse_temperature)
    with e.range(0, n, LANES) as i:
        lanes = e.table(vector(I64), list(range(LANES))) < e.splat(n - i)
        weights = _falling(e, (e.load(F32X16, head.maxima + i * 4) - e.splat(best)) * sharp)
        weighted = e.load(F32X16, sums + i * 4) * weights
        total.set(total.get() + lanes.select(weighted, e.const(F32X16, 0.0)))
    place, _ = head.place(e, token)
    own = one(e, _falling, (head.logit(e, place) - best) * inverse_temperature)
    return (own / e.sum_lanes(total.get())).to_double()


def _falling(e: Emitter, x: Value) -> Value:
    """exp(x) of x <= 0 to a relative 1e-6, in half the instructions of `exp`; 1e-38 is its least,
    which NaN gets, too."""
    y = x * LOG2_E
    y = (y > LEAST_EXPONENT).select(y, e.const(F32X16, LEAST_EXPONENT))
    rounded = y + ROUND
    fraction = y - (rounded - ROUND)
    series = polynomial(e, fraction, TWO_TO_THE)
    return (series.bits(I32X16) + (rounded.bits(I32X16) << 23)).bits(F32X16)


def _follow(c: _Loop, n_rows: Value, hidden_width: int, *, advances: bool) -> Value:
    """The step of the tokens just picked; returns how many there are. A sequence only ever moves
    to a lower place, in order, so nothing is overwritten that is still to be read."""
    e, w = c.e, c.w
    n_left = e.variable(e.index(0))
    with e.range(0, n_rows) as row:
        token = e.load(I64, c.row_word(row, RowWords.TOKEN), 8)
        with e.when(token >= 0):
            place, to = e.load(I64, c.row_word(row, RowWords.PLACE), 8), n_left.get()
            _move(c, place, to, advances=advances)
            if hidden_width:
                source = w[LoopWords.TAP] + c.last_row(place) * (4 * hidden_width)
                copy_floats(e, source, w[LoopWords.GIVEN] + to * (4 * hidden_width), hidden_width)
            c.put(token, c.step[StepWords.TOKENS], to)
            b = e.load(I64, c.row_word(row, RowWords.SEQUENCE), 8)
            e.store(b, c.row_word(to, RowWords.SEQUENCE), 8)
            e.store(to, c.row_word(to, RowWords.PLACE), 8)
            n_left.set(to + 1)
    n = n_left.get()
    with e.range(0, n) as i:
        c.put(i, c.step[StepWords.STARTS], i)
        c.put(i, c.step[StepWords.SEQUENCE_OF], i)
        c.put(i, c.step[StepWords.OUT_INDEX], i)
    c.put(n, c.step[StepWords.STARTS], n)
    e.store(n, c.step_at + 8 * StepWords.N_SEQUENCES, 8)
    c.set_rows(StepWords.ROW_SET, n)
    c.set_rows(StepWords.OUT_SET, n)
    return n


def _move(c: _Loop, place: Value, to: Value, *, advances: bool) -> None:
    """The words of a sequence in the next step, from those of this one."""
    e, step, ahead = c.e, c.step, int(advances)
    start, last = c.word(step[StepWords.STARTS], place), c.last_row(place)
    n_rows = last + 1 - start
    positions = step[StepWords.POSITIONS]
    position = c.word(positions, last) + ahead
    c.put(position, positions, to)
    c.put(position, step[StepWords.ROPE_ROWS], to)
    past = c.word(step[StepWords.PAST], place) + (n_rows - 1 + ahead)
    c.put(past, step[StepWords.PAST], to)
    replay = c.word(step[StepWords.REPLAY], place)
    c.put(_replay_after(c, replay, n_rows), step[StepWords.REPLAY], to)
    with e.when(to < place):
        c.put(c.word(step[StepWords.SLOTS], place), step[StepWords.SLOTS], to)
        # All that the sequence may come to: it does not grow past what it was laid out for.
        stride, page_len = step[StepWords.PAGES_STRIDE], step[StepWords.PAGE_LEN]
        n_pages = (past + c.w[LoopWords.MAX_DRAFT] + (page_len - 1)) // page_len
        pages, windowed = step[StepWords.PAGES], step[StepWords.WINDOWED_PAGES]

        def move(table: Value) -> None:
            with e.range(0, e.minimum(n_pages, stride // 8)) as i:
                c.put(c.word(table + place * stride, i), table + to * stride, i)

        move(pages)
        # Where windowed layers have no pages of their own, it is the same table.
        with e.when(windowed.equals(pages).equals(0)):
            move(windowed)


def _replay_after(c: _Loop, replay: Value, n_rows: Value) -> Value:
    """As `replay_after` in step.py, of rows that all hold."""
    e, window, none = c.e, c.w[LoopWords.WINDOW], c.e.index(0)
    fits = (replay + n_rows <= window).select(replay, none)
    kept = (replay < KEPT_FACTORS).select(fits, none)
    return kept + n_rows - e.maximum(n_rows - window, 0)


def write_summits(e: Emitter, width: int, stride: int) -> None:
    """Of each block of logits the best, and the sum of all exponentials less the best, at the
    inverse_temperature of its settings.

    Arguments: row set, rows of `stride` floats of which the first `width` count, maxima, sums,
    `RowWords` of each row, `SettingsWords` of each sequence.
    """
    arguments, part, parts = e.parameters
    row_set, rows, maxima, out, row_words, settings = e.words(arguments, 6)
    n_blocks = -(-width // MAXIMA_BLOCK)
    none = e.const(F32X16, float("-inf"))
    first, last = e.share(e.load(I64, row_set, 8) * n_blocks, part, parts)
    with e.range(first, last) as unit:
        row, start = unit // n_blocks, unit % n_blocks * MAXIMA_BLOCK
        at = rows + row * (4 * stride) + start * 4
        # Rows are followed by spare ones: what lies behind a row's end can be read.
        values = [e.load(F32X16, at + 4 * i) for i in range(0, MAXIMA_BLOCK, LANES)]
        if width % MAXIMA_BLOCK:
            n = e.splat(width - start)
            starts = range(0, MAXIMA_BLOCK, LANES)
            lanes = [e.table(vector(I64), [*range(i, i + LANES)]) for i in starts]
            values = [(k < n).select(x, none) for k, x in zip(lanes, values, strict=True)]
        pairs = [e.larger(values[i], values[i + 1]) for i in (0, 2)]
        best = e.largest_lane(e.larger(*pairs))
        b = e.load(I64, row_words + row * (8 * RowWords.COUNT) + 8 * RowWords.SEQUENCE, 8)
        ask = settings + b * (8 * SettingsWords.COUNT)
        sharp = e.splat(e.load(F32, ask + 8 * SettingsWords.SHARPNESS))
        weights = [_falling(e, (x - e.splat(best)) * sharp) for x in values]
        total = (weights[0] + weights[1]) + (weights[2] + weights[3])
        e.store(best, maxima + unit * 4)
        e.store(e.sum_lanes(total), out + unit * 4)
    e.finish()
