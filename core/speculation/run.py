"""`Run`: what is left of an n-gram draft whose beginning was taken in whole.

Where steps are quick, it is the next draft as it stands: nothing is looked up again, and nobody is
asked what it is worth. A look and a decision take as long as a step there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .interface import Draft, DraftRequest

LONGEST: Final = 63  # tokens of a part: with the one before them, whole tiles of rows
_LEAST: Final = 2  # tokens that are left: fewer are worth a look for more


class Run:
    """Of one text. `whole`: a draft, of which the first `n` tokens are being verified."""

    __slots__ = ("_n", "_n_used", "_start", "_whole", "sequence")

    def __init__(self, ask: DraftRequest, whole: Draft, n: int) -> None:
        self.sequence, self._whole = ask.sequence, whole
        self._start = len(ask.tokens)  # of the text, where the draft begins
        self._n = self._n_used = n

    def next(self, ask: DraftRequest) -> Draft | None:
        """The next part, twice as long as the one before it. None: the text has left the run, or
        the run is at its end."""
        whole, first = self._whole, self._n_used
        end = len(ask.tokens) - self._start  # the target adds a token to those that were right
        if end != first + 1 or not self._holds(ask.tokens, whole.tokens, end):
            return None
        n = min(2 * self._n + 1, LONGEST, len(whole.tokens) - end, ask.max_draft)
        if n < _LEAST:
            return None
        self._n, self._n_used = n, end + n
        last = end + n
        return Draft(whole.tokens[end:last], whole.sources[end:last], {}, whole.chances[end:last])

    def _holds(self, text: Sequence[int], drafted: list[int], end: int) -> bool:
        """All of the latest part is in the text; parts before it were looked at in their time."""
        if end > len(drafted):
            return False
        begin = end - self._n - 1
        return list(text[self._start + begin :]) == drafted[begin:end]
