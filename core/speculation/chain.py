"""Several speculators as one: who is asked, how their proposals become one draft.

N-grams cost next to nothing and are asked first; then the controller says for whom a model drafts,
and how far; then the splice joins what there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..state.store import StateStore
from .interface import Ask, Draft, Opening, Seen, Speculator


class Chain(Speculator):
    def __init__(self, speculators: Sequence[Speculator]) -> None:
        self._all = list(speculators)
        self.taps = frozenset().union(*(each.taps for each in self._all))

    def attach(self, store: StateStore) -> None:
        for each in self._all:
            each.attach(store)

    def begin(self, opening: Opening) -> None:
        for each in self._all:
            each.begin(opening)

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return self._all[-1].propose(asks)

    def observe(self, seen: Seen) -> None:
        for each in self._all:
            each.observe(seen)

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        for each in self._all:
            each.settle(sequence, n_accepted, mine=mine)

    def end(self, sequence: int) -> None:
        for each in self._all:
            each.end(sequence)

    def carry(self, sequence: int) -> dict[str, bytes]:
        return {k: v for each in self._all for k, v in each.carry(sequence).items()}

    def save(self, sequence: int) -> dict[str, bytes]:
        return {f"{each.name}.{k}": v for each in self._all for k, v in each.save(sequence).items()}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        for each in self._all:
            prefix = f"{each.name}."
            own = {k.removeprefix(prefix): v for k, v in blobs.items() if k.startswith(prefix)}
            if own:
                each.load(sequence, own)
