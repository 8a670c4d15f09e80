"""`RatedSequence`: an n-gram drafter's sequence that learns how right each kind of evidence is."""

from __future__ import annotations

from typing import Any

from .ngram_base import NgramSequence
from .ngram_chances import EvidenceRates, as_int


class RatedSequence(NgramSequence):
    """`basis`: of each token of the guess the kind of its evidence and the expected chance."""

    def __init__(self, owner: str, n_kinds: int) -> None:
        super().__init__(owner)
        self._n_kinds, self._rates = n_kinds, EvidenceRates(n_kinds)
        self.basis: list[list[float]] = []

    def learn(self, n_right: int, *, failed: bool) -> None:
        for i, (kind, expected) in enumerate(self.basis[: n_right + failed]):
            self._rates.learn(int(kind), expected, is_right=i < n_right)

    def save_learnt(self) -> Any:
        return self._rates.save()

    def load_learnt(self, saved: Any) -> None:
        self._rates.load(saved)

    def check_basis(self, basis: Any, n_offered: int) -> None:
        if len(basis) < n_offered:
            raise ValueError
        for kind, expected in basis:
            if not (0 <= as_int(kind) < self._n_kinds and 0 < expected < 1):
                raise ValueError
