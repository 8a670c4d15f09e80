"""One token out of the candidates: the argmax of logit + Gumbel noise.

That is an exact draw from the softmax (the Gumbel-max identity), and a pure function of
candidates, seed, sequence and position: speculation, batching and retries cannot change it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates, best_rows
from .noise import MAX_GUMBEL, PICK_TOKEN, random_words, to_gumbel, to_uniform

_FEW: Final = 64
# The library's logarithm may differ from ours in its last bits, never by as much as this.
_MARGIN: Final = 1e-9


class Place(NamedTuple):
    """Where a draw happens; the same place gives the same noise for ever."""

    seed: int
    sequence: int
    position: int


def draw(candidates: Candidates, place: Place, purpose: int = PICK_TOKEN) -> int:
    """The row of the token; of equals the lower id."""
    if candidates.ids.size == 1:
        return 0
    rows = None
    if candidates.ids.size > _FEW:  # most cannot win, whatever their noise
        head = candidates.take(best_rows(candidates.logits, _FEW), ranked=True)
        sure = _rough_scores(head, random_words(*place, purpose, head.ids)).max()
        rows = np.flatnonzero(candidates.logits >= sure - MAX_GUMBEL)
        candidates = candidates.take(rows, candidates.ranked)
    words = random_words(*place, purpose, candidates.ids)
    # The frozen noise takes sixty array operations; the library's logarithm decides in three
    # which candidates are so close to the best that it matters.
    rough = _rough_scores(candidates, words)
    best = rough.max()
    near = np.flatnonzero(rough >= best - _MARGIN * (1 + abs(best)))
    if near.size > 1:
        near = near[candidates.ids[near].argsort()]
        exact = candidates.logits[near] + to_gumbel(words[near])
        near = near[exact.argmax() :]
    row = int(near[0])
    return row if rows is None else int(rows[row])


def _rough_scores(candidates: Candidates, words: NDArray[np.uint64]) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = candidates.logits - np.log(-np.log(to_uniform(words)))
    return scores
