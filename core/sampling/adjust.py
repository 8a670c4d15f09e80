"""Changes to the logits of some tokens: bias, penalties, DRY. What they need not touch, they
need not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates, best_rows, by_id, rows_of

# A change makes a token unlikely, or bans it with -inf: in between, logits stay far inside
# float64, also after a division by the lowest temperature.
_FARTHEST: Final = 1e100

Logits = NDArray[np.float64]


class Adjustment(NamedTuple):
    tokens: NDArray[np.int64]  # each once
    # From their logits to new ones; the mask marks which of `tokens` are given.
    change: Callable[[Logits, NDArray[np.bool_]], Logits]

    def apply(self, candidates: Candidates) -> Candidates:
        """By id. Empty if every candidate was banned."""
        candidates = by_id(candidates)
        rows, found = rows_of(candidates, self.tokens)
        logits = candidates.logits.copy()
        with np.errstate(over="ignore"):
            changed = self.change(logits[rows], found)
        banned = changed == -np.inf
        logits[rows] = within(changed)
        if not banned.any():
            return Candidates(candidates.ids, logits)
        logits[rows[banned]] = -np.inf
        return Candidates(candidates.ids, logits).where(logits > -np.inf)


def within(logits: NDArray[np.floating]) -> Logits:
    held: Logits = np.minimum(np.maximum(logits, -_FARTHEST), _FARTHEST)
    return held


def shortlist(
    logits: NDArray[np.float32],
    count: int,
    adjustments: Sequence[Adjustment],
    maxima: NDArray[np.float32] | None = None,
) -> Candidates:
    """Candidates among which the `count` best are those of all, after the adjustments too.

    An untouched token that is then among the best has fewer than `count` untouched ones above
    it, so it is now among the `count` + touched best. Saves the widening of a long row: 152k
    logits with penalties take 0.1 ms instead of 1.3.
    """
    touched = np.unique(np.concatenate([each.tokens for each in adjustments]))
    touched = touched[touched < logits.size]
    best = best_rows(logits, min(count + touched.size, logits.size), maxima)
    ids = np.union1d(best, touched)
    wide = logits[ids].astype(np.float64)
    return Candidates(ids, wide).where(wide > -np.inf)
