"""The distribution of a token: the tokens that are possible, and the probability of each.

What acceptance by p/q is made of (Leviathan et al., ICML 2023; Chen et al., 2023), as pure
functions. A token x was drawn from a drafter's distribution q; the target's is p. x is accepted
with probability min(1, p(x) / q(x)); otherwise the token is drawn from max(0, p - q), normalised.
The outcome then has the distribution p, whatever q is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates, by_id, weights


class Distribution(NamedTuple):
    ids: NDArray[np.int64]  # ascending, each once
    probabilities: NDArray[np.float64]  # each above 0, together 1

    def __call__(self, token: int) -> float:
        """The probability of a token."""
        row = int(self.ids.searchsorted(token))
        is_known = row < self.ids.size and self.ids[row] == token
        return float(self.probabilities[row]) if is_known else 0.0


def distribution_of(candidates: Candidates) -> Distribution:
    """The softmax of the candidates' logits."""
    candidates = by_id(candidates)
    scaled = weights(candidates)
    return _normalised(candidates.ids, scaled)


def as_candidates(distribution: Distribution) -> Candidates:
    """Candidates whose softmax is the distribution."""
    return Candidates(distribution.ids, np.log(distribution.probabilities))


def chance(target: Distribution, drafter: Distribution | None, token: int) -> float:
    """Probability that a drafted token is accepted. Without `drafter` the draft was certain.

    The same where `drafter` rules the token out, since it cannot have been drawn from it then.
    """
    drawn_with = 1.0 if drafter is None else drafter(token) or 1.0
    return min(1.0, target(token) / drawn_with)


def residual(target: Distribution, drafter: Distribution | None, token: int) -> Distribution:
    """What to draw from where the drafted token did not hold."""
    ids, left = target
    if drafter is None or not drafter(token):
        left = np.where(ids == token, 0.0, left)
    else:
        rows = drafter.ids.searchsorted(ids)
        is_known = drafter.ids.take(rows, mode="clip") == ids
        left = left - np.where(is_known, drafter.probabilities.take(rows, mode="clip"), 0.0)
    if not (left > 0).any():
        return target  # the distributions are equal but for the last bits
    return _normalised(ids, left)


def without(distribution: Distribution, tokens: Collection[int]) -> Distribution | None:
    """As if these tokens could not come; None if no other can."""
    keep = ~np.isin(distribution.ids, list(tokens))
    if keep.all():
        return distribution
    return (
        _normalised(distribution.ids[keep], distribution.probabilities[keep])
        if keep.any()
        else None
    )


def _normalised(ids: NDArray[np.int64], shares: NDArray[np.float64]) -> Distribution:
    """Proportional to the shares; what has none is left out."""
    if shares.min() <= 0:
        keep = shares > 0
        ids, shares = ids[keep], shares[keep]
    return Distribution(ids, shares / shares.sum())
