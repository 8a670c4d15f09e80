"""Which slot a text is written in. All state is shared between slots, so nothing depends on it but
what `/slots` shows and saves: the last text of each."""

from __future__ import annotations

from collections.abc import Sequence

from .work import NO_LANE, Work


class Lanes:
    def __init__(self, n: int) -> None:
        self.works: list[Work | None] = [None] * n  # who is being written
        self.last: list[Sequence[int]] = [()] * n  # tokens of the text before; of none, nothing
        self._ended = [0] * n  # when that was: the number of texts that had ended
        self._n_ended = 0

    def find(self, work: Work) -> int | None:
        """A free one; that which was asked for, or which has what this text goes on from, or which
        has rested longest. None if there is none, or if the one asked for is busy."""
        wanted = work.wanted_lane
        if 0 <= wanted < len(self.works):
            return None if self.works[wanted] is not None else wanted
        free = [lane for lane, other in enumerate(self.works) if other is None]
        if not free:
            return None
        return max(free, key=lambda lane: (self._n_common(lane, work.prompt), -self._ended[lane]))

    def enter(self, lane: int, work: Work) -> None:
        work.lane, self.works[lane] = lane, work

    def leave(self, work: Work) -> None:
        if work.lane == NO_LANE:
            return
        self.works[work.lane] = None
        self._n_ended += 1
        self._ended[work.lane] = self._n_ended
        if work.sequence is not None:
            self.last[work.lane] = work.sequence.tokens

    def forget(self) -> None:
        self.last = [()] * len(self.last)

    def _n_common(self, lane: int, prompt: Sequence[int]) -> int:
        """Tokens of its last text, if the prompt goes on from (nearly) all of it."""
        last = self.last[lane]
        n = len(last) - 1  # the last token of a text has not been run
        if not 0 < n <= len(prompt) or last[n - 1] != prompt[n - 1]:
            return 0
        return n if list(last[:n]) == list(prompt[:n]) else 0
