"""Few sizes of steps, so that few graphs serve all: a step is filled up with rows of no sequence.

A filled step has a power of two of sequences, and one of few numbers of rows. A row's numbers are
the same in any step. Recurrences and attention leave rows of no sequence out.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace

from ..step import Step, n_kept
from .step_memory import MOST_REPEATED, rounded_up

A = TypeVar("A", bound=np.ndarray[Any, Any])

# Cells that the launches of a step are made for: 1k, 8k, 64k, 512k. Blocks beyond the context end
# at once: some 100 of them for each layer of attention cost less than to capture all widths again
# when a text has doubled.
SHORTEST_CONTEXT, LONGER_CONTEXT = 1024, 8
# Rows of a step. Close to each other: in a mixture a row of no sequence has experts that are read.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, MOST_REPEATED)
_LONGER_SEQUENCE = 4  # most rows of a sequence: 1, 4, 16, 64


def context_bucket(n_cells: int) -> int:
    """The context that launches are made for, if there are so many cells."""
    return _bucket(n_cells, SHORTEST_CONTEXT, LONGER_CONTEXT)


def row_bucket(longest: int, n_rows: int, window: int) -> int:
    """The most rows of a sequence that launches of so many rows are made for."""
    if longest > MOST_REPEATED:
        return longest
    most = window if longest <= window else n_rows
    return min(_bucket(longest, 1, _LONGER_SEQUENCE), most, n_rows)


def _bucket(n: int, least: int, factor: int) -> int:
    size = least
    while size < n:
        size *= factor
    return size


def filled_up(step: Step, window: int) -> Step:
    """The same step with rows and sequences behind it that are none."""
    lengths = np.diff(step.starts)
    # The first inputs of rows of no sequence go where the shortest sequence continues (`DEAD_ROW`).
    # A sequence without rows continues there as well. Its ring needs room for them.
    shortest = int(lengths.argmin())
    n, replay = int(lengths[shortest]), int(step.n_pending_accepted[shortest])
    is_in_ring = lengths.max() <= window
    if step.n_rows > MOST_REPEATED or (is_in_ring and n_kept(replay, n, window) + n >= window):
        return step
    n_rows = next(n for n in ROWS if n >= step.n_rows)
    n_sequences = rounded_up(step.n_sequences, 1)
    rows, sequences = n_rows - step.n_rows, n_sequences - step.n_sequences
    n_out = len(step.out_rows)
    if n_out:
        n_out = (n_sequences if n_out <= n_sequences else n_rows) - n_out
    position = step.positions[step.starts[shortest]] + n
    return replace(
        step,
        tokens=_longer(step.tokens, rows),
        positions=_longer(step.positions, rows, position),
        starts=_longer(step.starts, sequences, step.n_rows),
        slots=_longer(step.slots, sequences, step.slots[shortest]),
        past=_longer(step.past, sequences, step.past[shortest] + n),
        n_pending_accepted=_longer(step.n_pending_accepted, sequences),
        pages=_longer(step.pages, sequences),
        out_rows=_longer(step.out_rows, n_out),
        windowed_pages=(
            None if step.windowed_pages is None else _longer(step.windowed_pages, sequences)
        ),
        hidden=None if step.hidden is None else _longer(step.hidden, rows),
        embedded=None if step.embedded is None else _longer(step.embedded, rows),
        requests=None if step.requests is None else _longer(step.requests, sequences),
    )


def _longer(array: A, n: int, value: int = 0) -> A:
    """With so many entries more."""
    if not n:
        return array
    widths = [(0, n), *[(0, 0)] * (array.ndim - 1)]
    made: A = np.pad(array, widths, constant_values=value)  # type: ignore[assignment]
    return made
