"""`FeatureRows`: what a hidden-state drafter has read of a sequence, and the rows that wait.

The drafter's row for position p takes the token at p and the target's features of p - 1. It fills
cell p of the drafter's own keys and values, which lie in the pages of the sequence: so they are
shared, copied and saved with it. `PagePool.drafter_cells` counts the filled cells of each page.

A drafter that begins within a sequence counts its cells from there. Unless a page begins there, its
cells lie before those of the trunk, where no other sequence looks for them: they are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...backend.layers import Floats
from ...backend.step import Ints
from ...state.sizes import MAX_LAG
from ...state.store import SequenceState
from ..device_speculation import DrafterHandover

MAX_WAITING: Final = MAX_LAG  # rows: a piece of a prompt
RECENT: Final = 16  # rows that are read before a draft where much more is waiting
MUCH: Final = 96  # waiting rows beyond which only the recent ones are read

_PLACE_BYTES: Final = 16  # of a saved place: two numbers, then the features of one row


class FeatureRows:
    __slots__ = (
        "features", "filled", "first", "n_done", "n_features", "n_prompt", "n_tokens", "page_len",
        "state", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        state: SequenceState,
        n_prompt: int,
        page_len: int,
        width: int,
        filled: list[int],
        room: int = MAX_WAITING + 1,
    ) -> None:
        """`filled`: `PagePool.drafter_cells` of the drafter. `width`: of the features of a row.
        `room`: for rows that wait."""
        self.state, self.n_prompt, self.page_len, self.filled = state, n_prompt, page_len, filled
        self.first = 0  # the first cell that the drafter sees
        self.n_done = 0  # cells from `first` up to this one are filled
        # Waiting: tokens from position `n_done` on, and the features that go with them.
        self.tokens = np.zeros(room, np.int32)
        self.features = np.zeros((room, width), np.float32)
        self.n_tokens = self.n_features = 0

    @property
    def past(self) -> int:
        """Cells before the waiting rows, as the drafter counts them."""
        return self.n_done - self.first

    @property
    def last_features(self) -> Floats:
        """What the row after the newest one goes with, (1, width); empty where that is unknown."""
        return self.features[max(self.n_features - 1, 0) : self.n_features]

    @property
    def has_embedded(self) -> bool:
        """Whether rows of the prompt that are no tokens are among those that wait."""
        prompt = self.state.prompt
        return prompt is not None and self.n_done < prompt.end_of_rows

    @property
    def n_shared(self) -> int:
        """By how much positions behind the prompt are less than cells."""
        return 0 if self.state.prompt is None else self.state.prompt.n_shared

    # beginning

    def start(
        self, tokens: Sequence[int], carry: bytes, prefill: int, *, reruns_last: bool
    ) -> None:
        """Find the filled cells among those that the sequence has already.

        `carry` holds the features that go with the first row to come. Where features are lost,
        zeros take their place, as before the first token; that costs a little acceptance.
        `prefill`: tokens of the prompt to read, the last ones; -1: all.
        """
        n_cells, page_len = self.state.n_cells, self.page_len
        self._find_filled(n_cells + reruns_last)
        if prefill >= 0:
            begin = max(0, self.n_prompt - prefill) // page_len * page_len
            if begin > self.n_done:
                self.first = self.n_done = begin
        if n_cells > self.n_done:
            missing = tokens[self.n_done : n_cells]
            self.tokens[: len(missing)] = missing
            self.features[: len(missing)] = 0
            self.n_tokens = self.n_features = len(missing)
        if self.n_done + self.n_features == n_cells:
            row = np.frombuffer(carry, np.float32)
            if len(row) == self.features.shape[1]:
                self._append(row[None])
            elif not n_cells:
                self._append_zeros(1)

    def _find_filled(self, limit: int) -> None:
        """Filled cells below `limit`, as many of the last ones as follow each other."""
        page_len, pages = self.page_len, self.state.table.pages
        last = min(limit // page_len, len(pages))
        n_tail = self.filled[pages[last]] if last < len(pages) else 0
        first_page = last
        while first_page and self.filled[pages[first_page - 1]] >= page_len:
            first_page -= 1
        self.first = first_page * page_len
        self.n_done = last * page_len + min(n_tail, limit - last * page_len)

    def _begin_at(self, first: int) -> None:
        """What the page of this cell held before belongs to other places of the sequence."""
        self.first = first
        if first % self.page_len:
            for page in self.state.table.pages[first // self.page_len :]:
                self.filled[page] = 0

    # rows come in

    def add(self, tokens: Ints, taps: Sequence[Floats], first: int, n: int, cell: int) -> None:
        """`n` rows of a step of the target that are final, from row `first` on; the first of them
        is of `cell`. `taps`: arrays of all rows of the step, side by side the features."""
        end = self.n_done + self.n_tokens
        if n == 1 and cell == end and self.n_features == self.n_tokens + 1:  # the next row
            self.tokens[self.n_tokens] = tokens[first]
            self.n_tokens += 1
            self._append_taps(taps, first, first + 1)
            return
        if cell > end:
            self._restart(cell + 1)
        n_known = min(self.n_done + self.n_tokens - cell, n)
        n_new = n - n_known
        self.tokens[self.n_tokens : self.n_tokens + n_new] = tokens[first + n_known : first + n]
        self.n_tokens += n_new
        n_known = self.n_done + self.n_features - (cell + 1)
        if n_known < 0:
            self._append_zeros(-n_known)
            n_known = 0
        self._append_taps(taps, first + min(n_known, n), first + n)

    def _append_taps(self, taps: Sequence[Floats], first: int, end: int) -> None:
        rows = self.features[self.n_features : self.n_features + end - first]
        column = 0
        for tapped in taps:
            rows[:, column : column + tapped.shape[1]] = tapped[first:end]
            column += tapped.shape[1]
        self.n_features += end - first

    def _append(self, rows: Floats) -> None:
        self.features[self.n_features : self.n_features + len(rows)] = rows
        self.n_features += len(rows)

    def _append_zeros(self, n: int) -> None:
        self.features[self.n_features : self.n_features + n] = 0
        self.n_features += n

    def add_last(self, token: int, cell: int) -> None:
        """The newest token, which the target has not run yet."""
        if cell > self.n_done + self.n_tokens:
            self._restart(cell)
        self.tokens[self.n_tokens] = token
        self.n_tokens += 1
        if self.n_features < self.n_tokens:  # the target left them where the drafter did not run
            self._append_zeros(1)

    def make_cells(self, n_draft: int, n_unread: int) -> int:
        """For the rows that wait and a draft behind them, with `n_unread` rows beside those of its
        tokens. Returns how long the draft may be."""
        table, end = self.state.table, self.n_done + self.n_tokens
        n_draft = max(min(n_draft, table.room - end - n_unread), 0)
        table.reserve(end - 1, end + n_draft + n_unread if n_draft else end)
        return n_draft

    def _restart(self, cell: int) -> None:
        """The target ran rows before `cell` that never came in."""
        self._begin_at(cell)
        self.n_done, self.n_tokens, self.n_features = cell, 0, 0

    # rows go out

    def read(self, n_rows: int) -> None:
        """The drafter has run the first `n_rows` waiting rows."""
        self._count_filled(n_rows)
        self._drop(n_rows)

    def keep_recent(self) -> None:
        """Drop all waiting rows but the recent ones; the drafter begins anew with these."""
        first = self.n_done + self.n_tokens - RECENT
        page = first // self.page_len
        if page < self.state.table.n_shared:  # other sequences may read that page
            first = page * self.page_len
        n_dropped = first - self.n_done
        if n_dropped > 0:
            self._drop(n_dropped)
            self._begin_at(first)

    def _drop(self, n_rows: int) -> None:
        self.n_done += n_rows
        self.n_tokens -= n_rows
        self.n_features -= n_rows
        self.tokens[: self.n_tokens] = self.tokens[n_rows : n_rows + self.n_tokens]
        self.features[: self.n_features] = self.features[n_rows : n_rows + self.n_features]

    def _count_filled(self, n_rows: int) -> None:
        page_len, pages = self.page_len, self.state.table.pages
        if self.first % page_len:
            return
        cell, end = self.n_done, self.n_done + n_rows
        while cell < end:
            page, offset = pages[cell // page_len], cell % page_len
            n = min(end - cell, page_len - offset)
            if self.filled[page] == offset:
                self.filled[page] = offset + n
            cell += n

    # a device loop

    def hand_over(self, last: int) -> DrafterHandover:
        """All waiting rows and the newest token: the device reads on until `take_back`."""
        self.add_last(last, self.state.n_cells)
        n = self.n_tokens
        return DrafterHandover(self.tokens[:n].tolist(), self.features[:n].copy(), self.first)

    def take_back(self, n_cells: int, fresh: Sequence[int], hidden: Floats | None) -> None:
        """All rows were read up to the `fresh` tokens, of which the target has not run the last.
        Without hidden rows the device went beyond the end of the sequence."""
        self.n_tokens = self.n_features = 0
        if hidden is None:
            return
        n_done = n_cells - max(len(fresh) - 1, 0)
        self._count_filled(n_done - self.n_done)
        self.n_done = n_done
        n = len(fresh)
        self.n_tokens = max(n - 1, 0)
        self.tokens[: self.n_tokens] = fresh[: self.n_tokens]
        self._append(hidden)

    # saving

    def to_bytes(self) -> bytes:
        """The place; all rows must have been read. Empty where no features are known."""
        if not self.n_features:
            return b""
        return np.array([self.first, self.n_done], "<i8").tobytes() + self.last_features.tobytes()

    def resume(self, blob: bytes) -> None:
        """Go on at a saved place, whose cells are there; a place that does not fit is ignored."""
        width = self.features.shape[1]
        if len(blob) != _PLACE_BYTES + 4 * width:
            return
        first, n_done = np.frombuffer(blob[:_PLACE_BYTES], "<i8").tolist()
        if 0 <= first <= n_done <= self.state.n_cells:
            self.first, self.n_done = first, n_done
            self.n_tokens = self.n_features = 0
            self._append(np.frombuffer(blob[_PLACE_BYTES:], np.float32)[None])
