"""Kernels of LoRA adapters: which rows they are run on, and the scales of these."""

from __future__ import annotations

from ..emit import F32, I64, Emitter, Value
from .attention_shape import StepWords
from .pack import RowSet


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


def write_adapter_scales(e: Emitter, width: int, n_adapters: int, *, gathered: bool) -> None:
    """Multiplies each number of a row by the scale that its sequence has for an adapter.
    Arguments: row set, step, rows, scales of each slot, the adapter of each column (int64)."""
    arguments, part, parts = e.parameters
    row_set, step, rows, scales, adapters = e.words(arguments, 5)
    slots = e.load(I64, step + 8 * StepWords.SLOTS, 8)
    sequence_of = e.load(I64, step + 8 * StepWords.SEQUENCE_OF, 8)
    first, last = e.share(e.load(I64, row_set + 8 * RowSet.COUNT, 8), part, parts)
    with e.range(first, last) as row:
        own = _slot_of(e, row, (step, slots, sequence_of), gathered=gathered)
        own = scales + own * (4 * n_adapters)
        with e.range(0, width) as column:
            adapter = e.load(I64, adapters + column * 8, 8)
            at = rows + row * (4 * width) + column * 4
            e.store(e.load(F32, at) * e.load(F32, own + adapter * 4), at)
    e.finish()


def _slot_of(e: Emitter, row: Value, step: tuple[Value, Value, Value], *, gathered: bool) -> Value:
    """The slot of a row, or of a row with logits."""
    words, slots, sequence_of = step
    if gathered:
        row = e.load(I64, e.load(I64, words + 8 * StepWords.OUT_INDEX, 8) + row * 8, 8)
    return e.load(I64, slots + e.load(I64, sequence_of + row * 8, 8) * 8, 8)
