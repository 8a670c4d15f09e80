"""A convolution over the rows of a sequence, by weights that each row brings: DFlash2's blocks."""

from __future__ import annotations

from ..emit import F32, I64, Emitter, Value
from .attention_shape import StepWords
from .mathematics import F32X16
from .row_kernels import each_vector


def write_convolve(e: Emitter, width: int, kernel: int, group: int) -> None:
    """Arguments: step, rows in, factors and bytes from row to row of them, base, rows out."""
    arguments, part, parts = e.parameters
    step_at, source, factors, factor_bytes, base, out = e.words(arguments, 6)
    step = e.words(step_at, StepWords.COUNT)
    first, last = e.share(e.load(I64, step[StepWords.ROW_SET], 8), part, parts)
    with e.range(first, last) as row:
        b = e.load(I64, step[StepWords.SEQUENCE_OF] + row * 8, 8)
        start = e.load(I64, step[StepWords.STARTS] + b * 8, 8)
        n_taps = e.minimum(row - start + 1, kernel)
        with e.range(0, width // group) as block:
            channel = block * (4 * group)

            def add_up(at: Value, kind: object, row: Value = row, block: Value = block) -> None:
                total = e.variable(e.const(kind, 0.0))
                with e.range(0, n_taps) as tap:
                    of_row = factors + row * factor_bytes + (tap * (width // group) + block) * 4
                    weight = e.load(F32, of_row)
                    if kind is F32X16:
                        weight = e.splat(weight)
                    weight = weight + e.load(kind, base + tap * (4 * width) + at)
                    x = e.load(kind, source + (row - tap) * (4 * width) + at)
                    total.set(total.get() + weight * x)
                e.store(total.get(), out + row * (4 * width) + at)

            each_vector(
                e,
                group,
                lambda at: add_up(channel + at, F32X16),
                lambda at: add_up(channel + at, F32),
            )
    e.finish()
