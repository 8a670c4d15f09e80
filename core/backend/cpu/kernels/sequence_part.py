"""What kernels of recurrent layers know of the sequence that they work on."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...step import KEPT_FACTORS
from ..emit import I64, Emitter, Value
from .attention_shape import StepWords
from .mathematics import F32X16

# Decays and waits below this count as 0. Products with them would soon be denormal numbers, which
# take processors a hundred times as long, and are far below what the floats of a state can hold.
SMALLEST: Final = 1e-20


def without_smallest(e: Emitter, x: Value) -> Value:
    """Of 16 numbers that are not negative."""
    return (x < SMALLEST).select(e.const(F32X16, 0.0), x)


class SequencePart(Struct, frozen=True):
    """The rows of a sequence in a step, and its factors of earlier steps."""

    b: Value
    slot: Value
    start: Value  # its first row of the step
    pending: Value  # the first row that may be rejected
    end: Value
    n_pending_accepted: Value  # factors of earlier steps that hold
    kept: Value  # so many of them stay factors; the new ones come behind
    is_fresh: Value  # it has no past

    @classmethod
    def of(cls, e: Emitter, step: list[Value], b: Value, window: int) -> SequencePart:
        def word(which: int, index: Value) -> Value:
            return e.load(I64, step[which] + index * 8, 8)

        start, end = word(StepWords.STARTS, b), word(StepWords.STARTS, b + 1)
        replay, n_rows, none = word(StepWords.REPLAY, b), end - start, e.index(0)
        fits = (replay + n_rows <= window).select(replay, none)
        kept = (replay < KEPT_FACTORS).select(fits, none)  # as `n_kept` says
        pending = start + e.maximum(n_rows - window, 0)
        is_fresh = word(StepWords.PAST, b).equals(0)
        return cls(b, word(StepWords.SLOTS, b), start, pending, end, replay, kept, is_fresh)
