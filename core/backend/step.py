"""One forward pass: which rows of which sequences go through the model.

Everything that differs between two steps of the same shape is an array here, so that a backend may
record a model once and replay it. Rows of a sequence are consecutive, in `starts[b]:starts[b + 1]`.
Shape letters, here and in every backend: T rows, B sequences, R rows with logits, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = NDArray[np.int32]

# Token ids from here on stand for rows that come with the step, instead of a table's. No vocabulary
# is as large.
FIRST_ROW_ID: Final = 1 << 30


class Step(Struct, frozen=True):
    """It may be run again with other numbers in its arrays, written in place: that is quicker than
    a new one, see `StepArrays`."""

    tokens: Ints  # (T,)
    positions: Ints  # (T,) for rope; consecutive within a sequence, but for embedded rows
    starts: Ints  # (B + 1,) first row of each sequence, then T
    slots: Ints  # (B,) recurrent state of each sequence
    past: Ints  # (B,) cells of the KV cache that each sequence already holds
    n_pending_accepted: (
        Ints  # (B,) pending recurrent factors that turned out true, see `Backend.delta_rule`
    )
    pages: Ints  # (B, P) page table: cell c of sequence b is in page pages[b, c // page_len]
    out_rows: Ints  # (R,) rows with logits
    hidden: NDArray[np.float32] | None = None  # (T, D) rows that a drafter continues from
    # (B,) addresses, see `picking.py`: a backend that can picks the token after each row with
    # logits, which has the row's position + 1. 0, or no array: nothing is picked.
    requests: NDArray[np.int64] | None = None
    received: Any = None  # (T, D) rows of the backend's own, which another rank has sent
    # (B, P) the page table of windowed layers, if they have pages of their own: the same for them
    # as `pages`, but for cells that no row sees any more. Nothing reads the numbers there.
    windowed_pages: Ints | None = None
    # (T, D or more) rows to go on from where a token's id is `FIRST_ROW_ID` or more; others are not
    # read. What follows the first D numbers is added behind layers, see `Ops.add_embedded`.
    embedded: NDArray[np.float32] | None = None
    # (T, 3) positions in time, height and width, for ropes with axes; None: all are `positions`
    axes: Ints | None = None
    # (T,) of each row, how many later rows of its image are in the step, see
    # `Attention.bidirectional`; None: no row has any
    ahead: Ints | None = None

    @property
    def n_rows(self) -> int:
        return len(self.tokens)

    @property
    def n_sequences(self) -> int:
        return len(self.slots)

    def rows(self, b: int) -> slice:
        return slice(int(self.starts[b]), int(self.starts[b + 1]))


# Storing a recurrent state costs as much traffic as reading it; applying a factor again, a fraction
# of that. So the first few factors that hold stay factors over several steps.
KEPT_FACTORS = 4


def n_kept(replay: int, n_rows: int, window: int) -> int:
    """Of `replay` factors that hold, how many a step of `n_rows` leaves pending; new ones follow.

    All or none: none, once they are `KEPT_FACTORS` or the new ones would not fit behind them.
    """
    return replay if replay < KEPT_FACTORS and replay + n_rows <= window else 0


def pending_accepted_after(replay: int, n_rows: int, n_valid: int, window: int) -> int:
    """The next step's `replay` if `n_valid` of the rows hold."""
    return n_kept(replay, n_rows, window) + n_valid - max(0, n_rows - window)


class StepPart(Struct, frozen=True):
    """The part of a step that belongs to one sequence."""

    tokens: Sequence[int]
    past: int  # cells it already holds
    pages: Sequence[int]  # its page table, long enough for past + len(tokens) cells
    slot: int = 0
    n_pending_accepted: int = 0
    first_position: int | None = None  # None: `past`
    n_out: int = 1  # logits of the last so many rows
    windowed_pages: Sequence[int] = ()  # as long as `pages`, or none


_MAX_STEPS: Final = 256


class StepArrays:
    """Steps over arrays that are made once, for steps that follow each other.

    Fill in the arrays, then make a step of so many rows. The same numbers of rows and sequences
    get the same `Step`, whose addresses a backend has read already.
    """

    def __init__(
        self,
        max_rows: int,
        max_sequences: int,
        max_pages: int,
        width: int = 0,
        *,
        windowed: bool = False,
    ) -> None:
        """`width`: of hidden rows; 0: there are none. `windowed`: a second page table."""
        self.tokens, self.positions, self.out_rows = (np.zeros(max_rows, np.int32) for _ in "tpo")
        self.starts = np.zeros(max_sequences + 1, np.int32)
        self.slots, self.past, self.n_pending_accepted = (
            np.zeros(max_sequences, np.int32) for _ in "spr"
        )
        self.pages = np.zeros((max_sequences, max_pages), np.int32)
        self.windowed_pages = np.zeros_like(self.pages) if windowed else None
        self.hidden = np.zeros((max_rows, width), np.float32) if width else None
        self.requests = np.zeros(max_sequences, np.int64)
        self._embedded: NDArray[np.float32] | None = None
        self._axes: Ints | None = None
        self._ahead: Ints | None = None
        self._steps: dict[tuple[int, int, int, bool, bool, bool], Step] = {}

    def embedded(self, width: int) -> NDArray[np.float32]:
        """Made when it is first needed: most prompts are tokens alone."""
        if self._embedded is None:
            self._embedded = np.zeros((len(self.tokens), width), np.float32)
        return self._embedded

    def axes(self) -> Ints:
        """Likewise."""
        if self._axes is None:
            self._axes = np.zeros((len(self.tokens), 3), np.int32)
        return self._axes

    def ahead(self) -> Ints:
        """Likewise."""
        if self._ahead is None:
            self._ahead = np.zeros(len(self.tokens), np.int32)
        return self._ahead

    def step(
        self,
        n_rows: int,
        n_sequences: int,
        n_out: int = 0,
        *,
        has_embedded: bool = False,
        has_axes: bool = False,
        has_ahead: bool = False,
    ) -> Step:
        """Of what the arrays hold: now, and whenever it is run."""
        key = n_rows, n_sequences, n_out, has_embedded, has_axes, has_ahead
        embedded = self._embedded if has_embedded else None
        axes = self._axes if has_axes else None
        ahead = self._ahead if has_ahead else None
        made = self._steps.get(key)
        if made is None:
            if len(self._steps) >= _MAX_STEPS:
                self._steps.clear()
            made = self._steps[key] = Step(
                self.tokens[:n_rows],
                self.positions[:n_rows],
                self.starts[: n_sequences + 1],
                self.slots[:n_sequences],
                self.past[:n_sequences],
                self.n_pending_accepted[:n_sequences],
                self.pages[:n_sequences],
                self.out_rows[:n_out],
                None if self.hidden is None else self.hidden[:n_rows],
                self.requests[:n_sequences],
                windowed_pages=(
                    None if self.windowed_pages is None else self.windowed_pages[:n_sequences]
                ),
                embedded=None if embedded is None else embedded[:n_rows],
                axes=None if axes is None else axes[:n_rows],
                ahead=None if ahead is None else ahead[:n_rows],
            )
        return made


def build_step(pieces: Sequence[StepPart], hidden: NDArray[np.float32] | None = None) -> Step:
    """Lay the pieces of several sequences side by side."""
    lengths = [len(piece.tokens) for piece in pieces]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    is_windowed = any(len(piece.windowed_pages) for piece in pieces)
    first = [p.past if p.first_position is None else p.first_position for p in pieces]
    return Step(
        tokens=_join([np.asarray(piece.tokens) for piece in pieces]),
        positions=_join([f + np.arange(n) for f, n in zip(first, lengths, strict=True)]),
        starts=starts,
        slots=_join([[piece.slot] for piece in pieces]),
        past=_join([[piece.past] for piece in pieces]),
        n_pending_accepted=_join([[piece.n_pending_accepted] for piece in pieces]),
        pages=_table([piece.pages for piece in pieces]),
        out_rows=_join(
            [np.arange(end - p.n_out, end) for p, end in zip(pieces, starts[1:], strict=True)]
        ),
        hidden=hidden,
        windowed_pages=_table([piece.windowed_pages for piece in pieces]) if is_windowed else None,
    )


def token_step(tokens: Ints, *, with_logits: bool = True) -> Step:
    """Rows of tokens that read and leave no state, with logits of all or of none."""
    rows, one = np.arange(len(tokens), dtype=np.int32), np.zeros(1, np.int32)
    starts = np.array([0, len(tokens)], np.int32)
    out_rows = rows if with_logits else rows[:0]
    return Step(tokens, rows, starts, one, one, one, one[None], out_rows)


def _table(rows: Sequence[Sequence[int]]) -> Ints:
    table = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for b, row in enumerate(rows):
        table[b, : len(row)] = row
    return table


def _join(parts: Sequence[object]) -> Ints:
    return np.concatenate([np.asarray(part, np.int32) for part in parts])
