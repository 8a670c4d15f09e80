"""How often rounds are planned anew: planning costs time, and so does news that comes unnoticed."""

from __future__ import annotations

import math
from typing import Final

_FIRST_REPETITION: Final = 400.0  # rounds until the first repetition, before anything is known
_ROUNDS_KEPT: Final = 4000.0


class RepetitionRate:
    """How often n-gram drafts begin."""

    def __init__(self) -> None:
        self._n_begun, self._n_rounds, self._had_ngrams = 1.0, _FIRST_REPETITION, False

    def count(self, has_ngrams: bool, n_rounds: int) -> None:
        if has_ngrams and not self._had_ngrams:
            self._n_begun += 1.0
        self._had_ngrams = has_ngrams
        self._n_rounds += n_rounds
        if self._n_rounds > _ROUNDS_KEPT:
            self._n_begun, self._n_rounds = 0.5 * self._n_begun, 0.5 * self._n_rounds

    @property
    def mean_interval(self) -> float:
        """Rounds from one to the next."""
        return self._n_rounds / self._n_begun


def best_interval(cost: float, until_news: float) -> float:
    """Rounds between two plans that cost so many rounds each, if in `until_news` rounds there is
    something to react to. That is missed for half an interval on average, and the sum of both
    losses is least here."""
    return math.sqrt(2.0 * cost * until_news)
