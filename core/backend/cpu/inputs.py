"""The arrays of one step where the kernels look for them: fixed addresses, new contents."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ..layers import QueryGrowth, RotaryPositions
from ..low_rank import AdapterScales
from ..step import Ints, Step
from .kernels.attention_shape import StepWords
from .kernels.fill import FILL, SourceWords, write_fill
from .kernels.pack import RowSet
from .kernels.tile import WIDTHS

if TYPE_CHECKING:
    from .machine_code import Kernels, Writer

Words = NDArray[np.int64]
Angles = NDArray[np.float64]
_NAME: Final = "fill"
_WORD: Final = ctypes.c_int64
# Too short to give the interpreter's lock away.
_FUNCTION: Final = ctypes.PYFUNCTYPE(_WORD, _WORD, _WORD)
MAX_STEPS: Final = 64  # whose addresses are remembered, and that are kept alive for that
SPARE_ROWS = max(WIDTHS)  # a group may be wider than the rows that are left


@cache
def groups_of(n_rows: int) -> tuple[Words, Words, Words]:
    """Groups (first row, width), and of each row the first row and width of its group.

    The narrowest kernel that takes what is left, idle rows included; between 9 and 14 rows, 8 and
    what is left are cheaper than 16.
    """
    groups, row = [], 0
    while row < n_rows:
        left = n_rows - row
        width = 8 if 8 < left <= 14 else next(w for w in WIDTHS if w >= min(left, WIDTHS[-1]))
        groups.append((row, width))
        row += width
    table = np.array(groups, np.int64).reshape(-1, 2)
    widths = np.repeat(table[:, 1], table[:, 1])
    return table, np.repeat(table[:, 0], table[:, 1]), widths


def row_set_words(n_rows: int) -> tuple[int, ...]:
    """See `RowSet`. The groups that they point to are there for good."""
    table, start, size = groups_of(n_rows)
    return n_rows, len(table), *(a.ctypes.data for a in (table, start, size))


class RowCount:
    """A row set: how many rows, and their groups."""

    def __init__(self) -> None:
        self.words = np.zeros(RowSet.WORDS, np.int64)
        self.address = self.words.ctypes.data
        self.set(1)

    def set(self, n_rows: int) -> None:
        self.words[:] = row_set_words(n_rows)


class AdapterRows:
    """The rows that products with adapters go through: all of a step, or none where no sequence of
    it follows an adapter. A kernel lays them out, see `write_adapter_rows`."""

    def __init__(self, scales: AdapterScales) -> None:
        self.scales, self.rows, self.out_rows = scales, RowCount(), RowCount()
        self.is_laid_out = False  # by an entry of the program

    def of(self, *, gathered: bool) -> RowCount:
        """`gathered`: the rows with logits."""
        return self.out_rows if gathered else self.rows


class RopeTable:
    """cos and sin of positions, as far as they were computed: [cos …, sin …] in each row."""

    def __init__(
        self,
        rope: RotaryPositions,
        n_positions: int,
        growth: QueryGrowth | None = None,
        n_more: int = 0,
    ) -> None:
        """`n_more`: rows behind those of positions, for a step whose rows have axes."""
        self.rope, self.growth, self.n_positions = rope, growth, n_positions
        n_rows = n_positions + (0 if rope.axes is None else n_more)
        self.rows = np.empty((n_rows, 2 * len(rope.frequencies)), np.float32)
        self.filled = 0

    def fill(self, n_positions: int) -> None:
        end = min(max(n_positions, 2 * self.filled, 512), self.n_positions)
        self.rows[self.filled : end] = self._rows_of(np.arange(self.filled, end, dtype=np.int32))
        self.filled = end

    def place_axes(self, step: Step) -> None:
        """The rows of this step behind those of positions."""
        if self.rope.axes is not None:
            end = self.n_positions + step.n_rows
            self.rows[self.n_positions : end] = self._rows_of(step.positions, step.axes)

    def _rows_of(self, positions: Ints, axes: Ints | None = None) -> Angles:
        angles = self.rope.angles(positions, axes)
        rows = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * self.rope.magnitude
        if self.growth is not None:
            rows *= self.growth.at(positions)[:, None]
        return rows


class InputSource(NamedTuple):
    step: Step
    words: Words  # `SourceWords`
    address: int  # of the words


class StepInputs:
    """What a program reads of a step."""

    def __init__(
        self,
        max_rows: int,
        max_sequences: int,
        max_pages: int,
        page_len: int,
        *,
        windowed: bool = False,
    ) -> None:
        """`windowed`: layers have pages of their own."""
        self.windowed = windowed
        self.max_rows, self.max_sequences = max_rows, max_sequences
        self.rows, self.out_rows = RowCount(), RowCount()
        room = max_rows + SPARE_ROWS
        self.tokens, positions, sequence_of, self.out_index = (
            np.zeros(room, np.int64) for _ in range(4)
        )
        starts = np.zeros(max_sequences + 1, np.int64)
        slots, past, replay, requests = (np.zeros(max_sequences, np.int64) for _ in range(4))
        pages = np.zeros((max_sequences, max_pages), np.int64)
        windowed_pages = np.zeros_like(pages) if windowed else pages
        self._row_sets = np.zeros((max_rows + 1, RowSet.WORDS), np.int64)
        self._no_requests = np.zeros(max_sequences, np.int64)
        self._rope_rows = np.zeros(room, np.int64)  # of each row, in rope tables
        self._ahead = np.zeros(room, np.int64)
        self._n_ahead = 0  # rows that may have some
        self.ropes: list[RopeTable] = []
        self._n_rope = 0  # positions that all rope tables know
        self._steps: dict[int, InputSource] = {}
        self.words = np.zeros(StepWords.COUNT, np.int64)
        self._held = starts, slots, past, replay, requests, positions, sequence_of
        self._tables = pages, windowed_pages
        for word, array in {
            StepWords.STARTS: starts,
            StepWords.SLOTS: slots,
            StepWords.PAST: past,
            StepWords.REPLAY: replay,
            StepWords.PAGES: pages,
            StepWords.WINDOWED_PAGES: windowed_pages,
            StepWords.POSITIONS: positions,
            StepWords.ROPE_ROWS: self._rope_rows,
            StepWords.AHEAD: self._ahead,
            StepWords.SEQUENCE_OF: sequence_of,
            StepWords.TOKENS: self.tokens,
            StepWords.ROW_SETS: self._row_sets,
            StepWords.OUT_INDEX: self.out_index,
            StepWords.REQUESTS: requests,
        }.items():
            self.words[word] = array.ctypes.data
        self.words[StepWords.ROW_SET] = self.rows.address
        self.words[StepWords.OUT_SET] = self.out_rows.address
        self.words[StepWords.PAGES_STRIDE] = pages.strides[0]
        self.words[StepWords.PAGE_LEN] = page_len
        self.address = self.words.ctypes.data
        for n_rows in range(max_sequences + 1):  # what a draft may come to
            self._lay_out(n_rows)

    def rope_table(
        self, rope: RotaryPositions, n_positions: int, growth: QueryGrowth | None = None
    ) -> RopeTable:
        for table in self.ropes:
            if table.rope is rope and table.growth == growth:
                return table
        self.ropes.append(RopeTable(rope, n_positions, growth, self.max_rows))
        return self.ropes[-1]

    def check(self, n_rows: int, n_sequences: int) -> None:
        if n_rows > self.max_rows or n_sequences > self.max_sequences:
            raise ConfigError(
                f"a step of {n_rows} rows and {n_sequences} sequences; at most {self.max_rows} and "
                f"{self.max_sequences} were planned for"
            )

    def source_of(self, step: Step) -> InputSource:
        """To be held while its words are used. Steps that come again are known."""
        known = self._steps.get(id(step))
        if known is None:
            words = self._words_of(step)
            known = InputSource(step, words, words.ctypes.data)
            if len(self._steps) >= MAX_STEPS:
                self._steps.clear()
            self._steps[id(step)] = known  # with the step itself, so that no other gets its id
        return known

    def reach(self, n_positions: int) -> None:
        """Rope tables know so many positions from now on."""
        if n_positions > self._n_rope:
            for table in self.ropes:
                if n_positions > table.filled:
                    table.fill(n_positions)
            self._n_rope = min((table.filled for table in self.ropes), default=1 << 62)

    def place_images(self, step: Step) -> None:
        """What their rows have, after the arrays of a step are filled in. Tables with axes have as
        many positions."""
        if self._n_ahead or step.ahead is not None:
            self._ahead[: self._n_ahead] = 0
            self._n_ahead = 0
            if step.ahead is not None:
                self._n_ahead = step.n_rows
                self._ahead[: step.n_rows] = step.ahead
        if step.axes is None:
            return
        for table in self.ropes:
            table.place_axes(step)
            if table.rope.axes is not None:
                first = table.n_positions
                self._rope_rows[: step.n_rows] = np.arange(first, first + step.n_rows)

    def _words_of(self, step: Step) -> Words:
        n_rows, n_sequences, n_out = step.n_rows, step.n_sequences, len(step.out_rows)
        self.check(n_rows, n_sequences)
        if step.hidden is not None and len(step.hidden) != n_rows:
            raise ValueError(f"{len(step.hidden)} hidden rows for {n_rows} rows")
        self._lay_out(n_rows)
        self._lay_out(n_out)
        if self.windowed and step.windowed_pages is None:
            raise ValueError("windowed layers have pages of their own, and the step names none")
        requests = self._no_requests if step.requests is None else step.requests
        words = np.zeros(SourceWords.COUNT, np.int64)
        for word, array, kind in (
            (SourceWords.TOKENS, step.tokens, np.int32),
            (SourceWords.POSITIONS, step.positions, np.int32),
            (SourceWords.STARTS, step.starts, np.int32),
            (SourceWords.SLOTS, step.slots, np.int32),
            (SourceWords.PAST, step.past, np.int32),
            (SourceWords.REPLAY, step.n_pending_accepted, np.int32),
            (SourceWords.PAGES, step.pages, np.int32),
            (SourceWords.OUT_ROWS, step.out_rows, np.int32),
            (SourceWords.REQUESTS, requests, np.int64),
            (SourceWords.HIDDEN, step.hidden, np.float32),
            (SourceWords.WINDOWED_PAGES, step.windowed_pages if self.windowed else None, np.int32),
            (SourceWords.EMBEDDED, step.embedded, np.float32),
        ):
            if array is not None:
                words[word] = _address(array, kind)
        if step.embedded is not None:
            words[SourceWords.EMBEDDED_BYTES] = step.embedded.strides[0]
        words[SourceWords.PAGES_BYTES] = step.pages.strides[0]
        words[SourceWords.N_PAGES] = step.pages.shape[1]
        words[SourceWords.N_ROWS], words[SourceWords.N_SEQUENCES] = n_rows, n_sequences
        words[SourceWords.N_OUT] = n_out
        return words

    def _lay_out(self, n_rows: int) -> None:
        if not self._row_sets[n_rows, RowSet.GROUPS]:
            self._row_sets[n_rows] = row_set_words(n_rows)


def _address(array: NDArray[np.generic], kind: type[np.generic]) -> int:
    if array.dtype != kind or not array.flags.c_contiguous:
        raise ValueError(f"arrays of a step have to be contiguous, and this one {kind.__name__}")
    return array.ctypes.data


class Filler:
    """The kernel that fills `StepInputs`, as a function of Python."""

    def __init__(self, kernels: Kernels, inputs: StepInputs) -> None:
        self._held = kernels  # it owns the code
        self._function = _FUNCTION(kernels.addresses[_NAME])
        self._inputs = inputs
        self._latest: InputSource | None = None

    def fill(self, step: Step) -> None:
        latest = self._latest
        if latest is None or latest.step is not step:
            latest = self._latest = self._inputs.source_of(step)
        self._inputs.reach(self._function(self._inputs.address, latest.address))
        self._inputs.place_images(step)

    @staticmethod
    def add_to(writers: dict[str, Writer], kinds: dict[str, object]) -> None:
        """Let it be compiled with the kernels of a program."""
        writers[_NAME], kinds[_NAME] = write_fill, FILL
