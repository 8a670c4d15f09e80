"""Filters and reshapers of the candidate set: top-k, top-p, temperature. Pure functions.

Order and edges follow llama.cpp: top-k, then top-p on the probabilities at temperature 1, and
the temperature last. Unlike there, equal logits have one defined order: the lower token id is
the better one. At least one candidate always stays. A new transform is one function and one
row in `TRANSFORMS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .params import SamplingParams

# Below this a draw is greedy anyway; the largest float32 divided by it is still finite.
LOWEST_TEMPERATURE: Final = 1e-30


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens still in the race: ids ascending, never empty, every logit finite."""

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]  # widened once, exactly, so that no transform rounds

    def take(self, rows: NDArray[np.intp]) -> Candidates:
        """The candidates at these rows, whatever order the rows come in."""
        rows = np.sort(rows)
        return Candidates(self.ids[rows], self.logits[rows])


def from_logits(logits: NDArray[np.float32]) -> Candidates:
    """All tokens but those at -inf, which have no probability to lose."""
    ids = np.flatnonzero(logits > -np.inf)
    return Candidates(ids, logits[ids].astype(np.float64))


def best_rows(candidates: Candidates, count: int) -> NDArray[np.intp]:
    """Rows of the `count` best candidates, best first; ties go to the lower id."""
    logits = candidates.logits
    if count >= logits.size:
        return np.argsort(-logits, kind="stable")
    worst_kept = np.partition(logits, logits.size - count)[logits.size - count]
    above = np.flatnonzero(logits > worst_kept)
    level = np.flatnonzero(logits == worst_kept)[: count - above.size]
    rows = np.sort(np.concatenate((above, level)))
    return rows[np.argsort(-logits[rows], kind="stable")]


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Exactly the k best; 0 keeps all."""
    if k == 0 or k >= candidates.ids.size:
        return candidates
    return candidates.take(best_rows(candidates, k))


def top_p(candidates: Candidates, p: float) -> Candidates:
    """The fewest best candidates that together have probability `p`; 1 keeps all."""
    n_candidates = candidates.ids.size
    if p >= 1 or n_candidates == 1:
        return candidates
    weights = np.exp(candidates.logits - candidates.logits.max())
    wanted = p * float(weights.sum())
    # Sorting 152k logits takes 10 ms and the answer is nearly always among the first few, so
    # sort a longer and longer head. Sums run from the best down: the width changes no bit.
    for width in (256, 8192, n_candidates):
        rows = best_rows(candidates, width)
        reached = np.cumsum(weights[rows])
        if reached[-1] >= wanted or rows.size == n_candidates:
            break
    n_kept = int(np.searchsorted(reached, wanted)) + 1
    return candidates.take(rows[:n_kept])


def temperature(candidates: Candidates, value: float) -> Candidates:
    """Divide by the temperature, which must be above 0.

    No shift by the best logit: a candidate's score then depends on nobody else, so masking a
    token that would not have won changes nothing.
    """
    return Candidates(candidates.ids, candidates.logits / max(value, LOWEST_TEMPERATURE))


Transform = Callable[[Candidates, SamplingParams], Candidates]

TRANSFORMS: Final = MappingProxyType[str, Transform](
    {
        "top_k": lambda candidates, params: top_k(candidates, params.top_k),
        "top_p": lambda candidates, params: top_p(candidates, params.top_p),
        "temperature": lambda candidates, params: temperature(candidates, params.temperature),
    }
)
DEFAULT_ORDER: Final = ("top_k", "top_p", "temperature")


def apply(candidates: Candidates, params: SamplingParams) -> Candidates:
    for name in DEFAULT_ORDER:
        candidates = TRANSFORMS[name](candidates, params)
    return candidates
