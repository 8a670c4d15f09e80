"""`NewestRow`: what a drafter knows of a sequence if it has no cells of its own.

It reads the cells that the target has filled with accepted tokens. So it needs the newest token and
the features of the one before, and there is nothing to catch up on.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...backend.layers import Floats
from ...backend.step import Ints
from ...state.store import SequenceState
from .feature_rows import FeatureRows


class NewestRow(FeatureRows):
    """`n_done` are the tokens that the target had run when it left the features."""

    __slots__ = ()

    def __init__(self, state: SequenceState, n_prompt: int, page_len: int, width: int) -> None:
        super().__init__(state, n_prompt, page_len, width, [], room=1)

    @property
    def past(self) -> int:
        """The row stands at the last cell that it sees, which is the target's last one: cells
        behind it may be those of rejected tokens."""
        return max(self.n_done - 1, 0)

    def start(
        self, tokens: Sequence[int], carry: bytes, prefill: int, *, reruns_last: bool
    ) -> None:
        """The target runs at least one token before the first draft, which leaves the features."""

    def add(self, tokens: Ints, taps: Sequence[Floats], first: int, n: int, position: int) -> None:
        self.n_done, self.n_features = position + n, 0
        self._append_taps(taps, first + n - 1, first + n)

    def add_last(self, token: int, position: int) -> None:
        if position != self.n_done:  # the target ran rows that never came in
            self.n_done, self.n_features = position, 0
            self._append_zeros(1)
        self.tokens[0], self.n_tokens = token, 1

    def make_cells(self, n_draft: int, n_unread: int) -> int:
        """It writes none, and has none to read before the target has run a token."""
        return n_draft if self.n_done else 0

    def read(self, n_rows: int) -> None:
        self.n_tokens = 0

    def keep_recent(self) -> None:
        """It has no more than that."""
