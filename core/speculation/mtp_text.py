"""What an MTP head knows of one text, and what is waiting to be read by it.

The row for position p takes the token at p and the trunk's hidden row of p - 1. It writes cell p of
the head's keys and values, which lie in the pages of the text itself: so they are shared, copied
and saved with it. `PagePool.n_drafter_cells` tells which cells of a page another text has filled.

A head that begins amid a text counts its cells from there. Unless that is where a page begins, its
cells lie before those of the trunk, where no other text finds them: they are not told of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend.layers import Floats
from ..state.store import SequenceState
from .device_speculation import DrafterHandover

MAX_WAITING = 256  # rows: a piece of a prompt
RECENT = 16  # rows that are worth reading before the next draft, however long nobody drafted
MUCH = 96  # rows beyond which only the recent ones are read; whoever is only tried reads no more

_PLACE_BYTES = 16  # of what is saved: two numbers, then a hidden row


def bytes_of(rows: Floats) -> memoryview:
    return np.ascontiguousarray(rows).data.cast("B")


class WaitingRows:
    """Memory for what waits to be read, made once: it is large."""

    __slots__ = ("hidden", "hidden_view", "token_view", "tokens")

    def __init__(self, width: int) -> None:
        self.tokens = np.zeros(MAX_WAITING + 1, np.int32)
        self.hidden = np.zeros((MAX_WAITING + 1, width), np.float32)
        # The same memory, without numpy, whose calls are slow when the caches are cold.
        self.token_view, self.hidden_view = self.tokens.data, bytes_of(self.hidden)


class MtpText:
    __slots__ = (
        "first", "hidden", "hidden_view", "is_wanted", "n_done", "n_hidden", "n_prompt", "n_tokens",
        "page_len", "row_bytes", "rows", "sleeps", "state", "token_view", "tokens",
    )  # fmt: skip

    def __init__(
        self, state: SequenceState, n_prompt: int, page_len: int, rows: WaitingRows
    ) -> None:
        self.state, self.n_prompt, self.page_len = state, n_prompt, page_len
        self.first = 0  # the first cell that the head sees
        self.n_done = 0  # cells below this are filled, from `first` on
        # Waiting: tokens from position `n_done` on, and the hidden rows that go with them.
        self.rows, self.tokens, self.hidden = rows, rows.tokens, rows.hidden
        self.token_view, self.hidden_view = rows.token_view, rows.hidden_view
        self.n_tokens = self.n_hidden = 0
        self.row_bytes = 4 * rows.hidden.shape[1]
        self.sleeps, self.is_wanted = False, True  # it may sleep on although it is wanted

    @property
    def past(self) -> int:
        """Cells before the waiting ones, as the head counts them."""
        return self.n_done - self.first

    @property
    def room(self) -> int:
        return MAX_WAITING - self.n_tokens

    @property
    def last_hidden(self) -> Floats:
        """What the row after the text's last one goes with; empty before the first."""
        return self.hidden[max(self.n_hidden - 1, 0) : self.n_hidden]

    def start(
        self,
        tokens: Sequence[int],
        carry: bytes,
        prefill: int,
        marks: list[int],
        *,
        runs_again: bool,
    ) -> None:
        """Find what is there of the cells that the text already has.

        Where hidden rows are lost, zeros take their place, as before the first token. That costs
        a little acceptance, and only where a text was not drafted for all the way.
        """
        n_cells, page_len = self.state.n_cells, self.page_len
        self._find_filled(n_cells + runs_again, marks)
        if prefill >= 0:
            begin = max(0, self.n_prompt - prefill) // page_len * page_len
            if begin > self.n_done:
                self.first = self.n_done = begin
        if n_cells > self.n_done:
            missing = tokens[self.n_done : n_cells]
            self.tokens[: len(missing)] = missing
            self.hidden[: len(missing)] = 0
            self.n_tokens = self.n_hidden = len(missing)
        if self.n_done + self.n_hidden == n_cells:
            row = np.frombuffer(carry, np.float32)
            if len(row) == self.hidden.shape[1]:
                self._append_hidden(row[None])
            elif not n_cells:
                self._append_hidden(np.zeros((1, self.hidden.shape[1]), np.float32))

    def _find_filled(self, limit: int, marks: list[int]) -> None:
        """Filled cells below `limit`, as many of the last ones as follow each other."""
        page_len, pages = self.page_len, self.state.table.pages
        last = min(limit // page_len, len(pages))
        n_tail = marks[pages[last]] if last < len(pages) else 0
        first_page = last
        while first_page and marks[pages[first_page - 1]] >= page_len:
            first_page -= 1
        self.first = first_page * page_len
        self.n_done = last * page_len + min(n_tail, limit - last * page_len)

    def sleep(self) -> None:
        self.sleeps, self.is_wanted = True, False

    def wakes_in(self, position: int, n: int, marks: list[int]) -> bool:
        """After a sleep, which rows to begin with: the next one. Of a prompt, the last page is
        enough, and a page's beginning is where others can go on from."""
        if not self.is_wanted:
            return False
        page_len, begin = self.page_len, position + 1
        if position < self.n_prompt:
            next_page = -(-begin // page_len) * page_len
            begin = max(next_page, (self.n_prompt - 1) // page_len * page_len)
        if begin > position + n:
            return False
        self._begin_at(begin, marks)
        self.n_done = begin
        self.n_tokens = self.n_hidden = 0
        self.sleeps = False
        return True

    def _begin_at(self, first: int, marks: list[int]) -> None:
        """What a page held before belongs to other places of the text."""
        self.first = first
        if first % self.page_len:
            for page in self.state.table.pages[first // self.page_len :]:
                marks[page] = 0

    def add(
        self, tokens: memoryview, hidden: memoryview, rows: tuple[int, int], position: int
    ) -> None:
        """Rows of the target that hold, of a step with these tokens and bytes of hidden rows; the
        first of them is at `position`."""
        first, end = rows
        known = self.n_done + self.n_tokens - position
        begin = min(first + known, end) if known > 0 else first
        n = self.n_tokens + (end - begin)
        self.token_view[self.n_tokens : n] = tokens[begin:end]
        self.n_tokens = n
        skipped = self.n_done + self.n_hidden - (position + 1)
        if skipped < 0:
            self._append_hidden(np.zeros((-skipped, self.hidden.shape[1]), np.float32))
        elif skipped:
            first = min(first + skipped, end)
        width, n = self.row_bytes, self.n_hidden + (end - first)
        self.hidden_view[self.n_hidden * width : n * width] = hidden[first * width : end * width]
        self.n_hidden = n

    def add_last(self, token: int) -> int:
        """The text's last token, which the target has not run yet; returns its position + 1."""
        self.token_view[self.n_tokens] = token
        self.n_tokens += 1
        if self.n_hidden < self.n_tokens:  # restored from where nobody had drafted like this
            self._append_hidden(np.zeros((1, self.hidden.shape[1]), np.float32))
        return self.n_done + self.n_tokens

    def lend(self, last: int) -> DrafterHandover:
        """All that waits, and the text's last token. Until it is given back, a device reads on."""
        self.add_last(last)
        n = self.n_tokens
        return DrafterHandover(self.tokens[:n].tolist(), self.hidden[:n].copy(), self.first)

    def take_back(
        self, n_cells: int, fresh: Sequence[int], hidden: Floats | None, marks: list[int]
    ) -> None:
        """All was read up to the `fresh` tokens, of which the target has not run the last one."""
        self.n_tokens = self.n_hidden = 0
        if hidden is None:
            self.sleep()
            return
        n_done = n_cells - max(len(fresh) - 1, 0)
        self._mark(n_done - self.n_done, marks)
        self.n_done = n_done
        n = len(fresh)
        self.n_tokens, self.n_hidden = max(n - 1, 0), n
        self.tokens[: self.n_tokens] = fresh[: self.n_tokens]
        self.hidden[:n] = hidden

    def _append_hidden(self, rows: Floats) -> None:
        end = self.n_hidden + len(rows)
        self.hidden[self.n_hidden : end] = rows
        self.n_hidden = end

    def resume(self, blob: bytes) -> bool:
        """Go on where a text was saved; its cells are there. False: what is saved says nothing
        here, as where the prompt was not read up to where the head begins, and nothing changes."""
        width = self.hidden.shape[1]
        if len(blob) != _PLACE_BYTES + 4 * width:
            return False
        first, n_done = np.frombuffer(blob[:_PLACE_BYTES], "<i8").tolist()
        row = np.frombuffer(blob[_PLACE_BYTES:], np.float32)
        if not 0 <= first <= n_done <= self.state.n_cells:
            return False
        self.first, self.n_done = first, n_done
        self.n_tokens = self.n_hidden = 0
        self._append_hidden(row[None])
        return True

    def read(self, n_rows: int, marks: list[int]) -> None:
        """The head has run the first `n_rows` that were waiting."""
        self._mark(n_rows, marks)
        self._drop(n_rows)

    def forget(self, marks: list[int]) -> None:
        """Nobody has drafted for long: of what waits, only the recent rows will be read, and what
        the head drafts next begins there. To read on for nobody would cost what a layer costs."""
        first = self.n_done + self.n_tokens - RECENT
        page = first // self.page_len
        if page < self.state.table.n_shared:  # others may read what is there
            first = page * self.page_len
        dropped = first - self.n_done
        if dropped > 0:
            self._drop(dropped)
            self._begin_at(first, marks)

    def _drop(self, n_rows: int) -> None:
        self.n_done += n_rows
        self.n_tokens -= n_rows
        self.n_hidden -= n_rows
        if self.n_tokens:
            self.tokens[: self.n_tokens] = self.tokens[n_rows : n_rows + self.n_tokens]
        if self.n_hidden:
            self.hidden[: self.n_hidden] = self.hidden[n_rows : n_rows + self.n_hidden]

    def _mark(self, n_rows: int, marks: list[int]) -> None:
        page_len, pages = self.page_len, self.state.table.pages
        if self.first % page_len:
            return
        cell, end = self.n_done, self.n_done + n_rows
        while cell < end:
            page, offset = pages[cell // page_len], cell % page_len
            n = min(end - cell, page_len - offset)
            if marks[page] == offset:
                marks[page] = offset + n
            cell += n
