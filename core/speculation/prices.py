"""`Prices`: tables of the cost model, read again when it pays."""

from __future__ import annotations

from typing import Final

from .costs import CostModel
from .curve import Slope

_MOST_ROWS: Final = 320
_LONGEST: Final = 64
_KEPT_FOR: Final = 48  # readings
QUICK_MS: Final = 0.3  # a step that takes less: reading takes as long as one
_QUICK_KEPT_FOR: Final = 64
_SELDOM: Final = 52  # until so few are left, news have to wait
_TELLING: Final = 0.1  # of a plain step
_LEAST: Final = 0.5  # of a plain step: what is left of it in a much shorter context


class Prices:
    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self.steps: list[float] = []  # ms by rows; never falling
        self.hoped: list[float] = []  # the same, where unknown as little as it could be
        self._drafts: dict[tuple[str, int], list[float]] = {}
        self._per_row: dict[str, float] = {}  # ms of catching up
        self._slope = Slope(0.0, 0.0)
        self._reach = 0.0  # tokens of context that make no difference
        self.are_quick = False  # steps are: a decision is not to take long beside one
        self._n_sequences = self._n_ctx = self._version = self._pace = self._n_left = 0

    def expire(self) -> None:
        """The tables are read anew the next time."""
        self._n_left = 0

    def read(self, n_sequences: int, n_ctx: int) -> None:
        """Make the tables fit a step of so many sequences with so much context together."""
        self._n_left -= 1
        if self._n_left > 0 and n_sequences == self._n_sequences:
            far = abs(n_ctx - self._n_ctx)
            if self.are_quick:
                is_due = self._n_left <= _SELDOM and self._is_news()
                is_due = is_due or self._pace != self.costs.pace
                if not is_due and (far <= self._reach or self._moves(n_ctx)):
                    return
            elif not self._is_news() and 8 * far <= self._n_ctx:
                return
        n_rows = n_sequences + min(_LONGEST * n_sequences, _MOST_ROWS)
        self.steps, self.hoped = self.costs.steps(n_rows, n_ctx)
        self._drafts.clear()
        self._per_row.clear()
        self._n_sequences, self._n_ctx = n_sequences, n_ctx
        self._version, self._pace = self.costs.version, self.costs.pace
        plain = self.steps[n_sequences]
        self.are_quick = plain < QUICK_MS
        self._n_left = _QUICK_KEPT_FOR if self.are_quick else _KEPT_FOR
        self._slope = self.costs.slope
        self._reach = _TELLING * plain / max(self._slope.of(n_sequences), 1e-9)

    def _moves(self, n_ctx: int) -> bool:
        """To another context, if it is not too far away to be reckoned."""
        far, (common, each) = n_ctx - self._n_ctx, self._slope
        ms, row = common * far, each * far
        least = min(self.steps[1], self.hoped[1])
        if least + ms + row < _LEAST * least:
            return False
        self.steps = [step + ms + row * n for n, step in enumerate(self.steps)]
        self.hoped = [step + ms + row * n for n, step in enumerate(self.hoped)]
        self._n_ctx = n_ctx
        return True

    def _is_news(self) -> bool:
        return self._version != self.costs.version

    def drafts(self, source: str, n_sequences: int) -> list[float]:
        """ms of drafting 0 … tokens for so many sequences at once."""
        key = (source, n_sequences)
        table = self._drafts.get(key)
        if table is None:
            table = self._drafts[key] = self.costs.drafts(source, n_sequences, _LONGEST)
        return table

    def catching_up(self, source: str, n_rows: int) -> float:
        """ms before the first token, if the drafter has so many rows to read."""
        per_row = self._per_row.get(source)
        if per_row is None:
            per_row = self._per_row[source] = self.costs.catching_up(source, 1)
        return per_row * n_rows

    def row(self, n_sequences: int, *, hoped: bool = False) -> float:
        """What one more row takes where rows are cheapest."""
        steps = self.hoped if hoped else self.steps
        start = steps[n_sequences]
        return min(
            (steps[n] - start) / (n - n_sequences)
            for n in range(n_sequences + 1, min(len(steps), 4 * n_sequences + 16))
        )
