"""The mixer of LFM2: rows [b | c | x] become c * convolution(b * x)."""

from __future__ import annotations

from ...layers import RecurrentShape
from ..emit import LANES, Emitter, Value
from .attention_shape import StepWords
from .convolution import VECTOR, Ring, convolve
from .mathematics import F32X16
from .sequence_part import SequencePart


def write_short_convolution(e: Emitter, s: RecurrentShape, window: int) -> None:
    """Arguments: step, rows in, weights (kernel, channels), ring, rows out."""
    arguments, part, parts = e.parameters
    step_at, rows, weights, inputs, out = e.words(arguments, 5)
    step = e.words(step_at, StepWords.COUNT)
    ring, n_vectors, third = (
        Ring.of(s, inputs, weights, window),
        s.channels // LANES,
        4 * s.channels,
    )
    first, last = e.share(step[StepWords.N_SEQUENCES] * n_vectors, part, parts)
    with e.range(first, last) as unit:
        at = SequencePart.of(e, step, unit // n_vectors, window)
        channel = unit % n_vectors * VECTOR
        source, to = rows + channel, out + channel

        def column(which: int, row: Value, source: Value = source) -> Value:
            return e.load(F32X16, source + row * (3 * third) + which * third)

        convolve(
            e,
            ring,
            at,
            channel,
            lambda row: column(0, row) * column(2, row),
            lambda row, total: e.store(column(1, row) * total, to + row * third),
        )
    e.finish()
