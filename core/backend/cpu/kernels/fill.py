"""A step's arrays, of 32 bits and of the caller, to where the kernels of a program read them.

In one call, because each call of numpy takes 5 to 10 us when the weights of a step have just
flushed the caches.
"""

from __future__ import annotations

from llvmlite import ir

from ..emit import I32, I64, Emitter, Value
from .attention_shape import StepWords
from .pack import RowSet

FILL = ir.FunctionType(I64, [I64, I64])  # (step words, source words) -> positions that it reaches


class SourceWords:
    """A caller's step: addresses of its arrays, and their sizes."""

    TOKENS, POSITIONS, STARTS, SLOTS, PAST, REPLAY, PAGES, PAGES_BYTES, N_PAGES = range(9)
    OUT_ROWS, REQUESTS, HIDDEN, N_ROWS, N_SEQUENCES, N_OUT = range(9, 15)
    WINDOWED_PAGES = 15  # 0: layers have none of their own; as wide as `PAGES`
    EMBEDDED = 16  # 0: no token stands for a row
    EMBEDDED_BYTES = 17  # from row to row
    COUNT = 18


class Filling:
    """From the words of a source to the words of the step that a program reads."""

    def __init__(self, e: Emitter, step_at: Value, source_at: Value) -> None:
        self.e, self.step_at = e, step_at
        self.step = e.words(step_at, StepWords.COUNT)
        self.source = e.words(source_at, SourceWords.COUNT)

    def word(self, array: Value, i: Value) -> Value:
        return self.e.load(I64, array + i * 8, 8)

    def put(self, value: Value, array: Value, i: Value) -> None:
        self.e.store(value, array + i * 8, 8)

    def last_row(self, b: Value) -> Value:
        return self.word(self.step[StepWords.STARTS], b + 1) - 1

    def set_rows(self, word: int, n: Value) -> None:
        """`word` of the step: the row set that has n rows now."""
        source = self.step[StepWords.ROW_SETS] + n * (8 * RowSet.WORDS)
        for i in range(RowSet.WORDS):
            self.e.store(self.e.load(I64, source + 8 * i, 8), self.step[word] + 8 * i, 8)

    def widen(self, source: Value, target: Value, n: Value) -> None:
        with self.e.range(0, n) as i:
            self.put(self.e.load(I32, source + i * 4).widen(I64, signed=True), target, i)

    def lay_out(self) -> None:
        """All but page tables, hidden rows, and the rows with logits."""
        e, step, source = self.e, self.step, self.source
        n_rows, n_sequences = source[SourceWords.N_ROWS], source[SourceWords.N_SEQUENCES]
        self.set_rows(StepWords.ROW_SET, n_rows)
        e.store(n_sequences, self.step_at + 8 * StepWords.N_SEQUENCES, 8)
        for given, target in (
            (SourceWords.EMBEDDED, StepWords.EMBEDDED),
            (SourceWords.EMBEDDED_BYTES, StepWords.EMBEDDED_BYTES),
        ):
            e.store(source[given], self.step_at + 8 * target, 8)
        self.widen(source[SourceWords.STARTS], step[StepWords.STARTS], n_sequences + 1)
        for given, target in (
            (SourceWords.TOKENS, StepWords.TOKENS),
            (SourceWords.POSITIONS, StepWords.POSITIONS),
            (SourceWords.POSITIONS, StepWords.ROPE_ROWS),
        ):
            self.widen(source[given], step[target], n_rows)
        for given, target in (
            (SourceWords.SLOTS, StepWords.SLOTS),
            (SourceWords.PAST, StepWords.PAST),
            (SourceWords.REPLAY, StepWords.REPLAY),
        ):
            self.widen(source[given], step[target], n_sequences)
        with e.range(0, n_sequences) as b:
            first = self.word(step[StepWords.STARTS], b)
            with e.range(first, self.last_row(b) + 1) as row:
                self.put(b, step[StepWords.SEQUENCE_OF], row)

    def n_cells(self, b: Value) -> Value:
        """Once the rows of the step have run."""
        start = self.word(self.step[StepWords.STARTS], b)
        return self.word(self.step[StepWords.PAST], b) + (self.last_row(b) + 1 - start)

    def copy_pages(self, b: Value, n_cells: Value) -> None:
        page_len = self.step[StepWords.PAGE_LEN]
        n_pages = (n_cells + (page_len - 1)) // page_len
        n_pages = self.e.minimum(n_pages, self.source[SourceWords.N_PAGES])
        row = b * self.source[SourceWords.PAGES_BYTES]
        to = b * self.step[StepWords.PAGES_STRIDE]
        self.widen(self.source[SourceWords.PAGES] + row, self.step[StepWords.PAGES] + to, n_pages)
        windowed = self.source[SourceWords.WINDOWED_PAGES]
        with self.e.when(windowed > 0):
            self.widen(windowed + row, self.step[StepWords.WINDOWED_PAGES] + to, n_pages)


def write_fill(e: Emitter) -> None:
    f = Filling(e, *e.parameters)
    f.lay_out()
    n_out = f.source[SourceWords.N_OUT]
    f.set_rows(StepWords.OUT_SET, n_out)
    f.widen(f.source[SourceWords.OUT_ROWS], f.step[StepWords.OUT_INDEX], n_out)
    reach = e.variable(e.index(0))
    with e.range(0, f.source[SourceWords.N_SEQUENCES]) as b:
        f.put(f.word(f.source[SourceWords.REQUESTS], b), f.step[StepWords.REQUESTS], b)
        f.copy_pages(b, f.n_cells(b))
        last = f.word(f.step[StepWords.POSITIONS], f.last_row(b))
        reach.set(e.maximum(reach.get(), last + 1))
    e.finish(reach.get())
