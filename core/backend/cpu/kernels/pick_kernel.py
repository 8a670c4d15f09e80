"""Picking the tokens of a step as its last entry, shared among the threads."""

from __future__ import annotations

from ... import picking
from ..emit import I64, Emitter
from .attention_shape import StepWords
from .sample import Head, largest, pick_token


class PickWords:
    """Arguments. `PICKED` is what comes out: a token for each row of logits, or `UNSURE`."""

    STEP, LOGITS, LOGITS_BYTES, MAXIMA, MAXIMA_BYTES, SCRATCH, PICKED = range(7)
    COUNT = 7


def write_picks(e: Emitter) -> None:
    """Threads take the rows in turn. One that sees its pick differ from the token drafted there
    leaves out the rest of that sequence: those tokens follow something else."""
    words_at, part, parts = e.parameters
    w = e.words(words_at, PickWords.COUNT)
    step = e.words(w[PickWords.STEP], StepWords.COUNT)
    n_rows = e.load(I64, step[StepWords.OUT_SET], 8)
    scratch = w[PickWords.SCRATCH] + part * picking.SCRATCH_BYTES
    left = e.variable(e.index(-1))  # the sequence that nothing more is wanted of
    with e.range(0, (n_rows + (parts - 1) - part) // parts) as turn:
        row = turn * parts + part
        at = e.load(I64, step[StepWords.OUT_INDEX] + row * 8, 8)
        b = e.load(I64, step[StepWords.SEQUENCE_OF] + at * 8, 8)
        request = e.load(I64, step[StepWords.REQUESTS] + b * 8, 8)
        token = e.variable(e.index(picking.UNSURE))
        with e.when((request > 0) & (b.equals(left.get()) ^ 1)):
            maxima = w[PickWords.MAXIMA] + row * w[PickWords.MAXIMA_BYTES]
            logits = w[PickWords.LOGITS] + row * w[PickWords.LOGITS_BYTES]
            head = Head(
                logits, maxima, e.load(I64, request + 8 * picking.N_VOCAB, 8), is_whole=True
            )
            position = e.load(I64, step[StepWords.POSITIONS] + at * 8, 8) + 1
            best = largest(e, maxima, head.n_blocks)
            token.set(pick_token(e, head, best, (request, scratch, position)))
            drafted = e.load(I64, step[StepWords.TOKENS] + (at + 1) * 8, 8)
            left.set(token.get().equals(drafted).select(left.get(), b))
        e.store(token.get(), w[PickWords.PICKED] + row * 8, 8)
    e.finish()
