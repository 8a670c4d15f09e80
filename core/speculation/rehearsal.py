"""A few rounds before the first text, so that the controller knows what rounds cost here.

First goes of anything are slow: pages are touched, code is fetched. What is learned from them would
keep drafts away that pay. So every kind of round is gone through twice, on a text that nobody gets,
and the first time is not believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Final, NamedTuple

OWNER: Final = "\0rehearsal"  # what is written here is drafted for nobody
LIMIT_S: Final = 0.15
SLOWEST_STEP_S: Final = 0.03  # beyond, timings are steady enough to be learned on the way
GOES: Final = 3
MANY: Final = 31  # rows that take long, unless all that came before was quick


class Go(NamedTuple):
    """A round: rows that somebody made up, or a draft by a model."""

    model: str
    n: int
    counts: bool  # its timings are believed


class Rehearsal:
    def __init__(self, models: Sequence[str]) -> None:
        self._goes = _all_goes(models)
        self._began = perf_counter()

    def next(self) -> Go | None:
        """None: that is enough."""
        took, go = perf_counter() - self._began, next(self._goes, None)
        return None if go is None or took > (LIMIT_S if go.n < MANY else LIMIT_S / 4) else go


def _all_goes(models: Sequence[str]) -> Iterator[Go]:
    kinds = [("", 0), ("", 0), *((model, 3) for model in models), *((model, 1) for model in models)]
    kinds += [("", 3), ("", 1), ("", 7), ("", 15), ("", 31), ("", 63)]
    for model, n in kinds:
        for i in range(GOES):
            yield Go(model, n, counts=i > 0)
