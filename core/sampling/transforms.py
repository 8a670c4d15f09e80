"""Filters and reshapers of the candidate set, each a pure function. Order: `chain.py`.

Names and edges are llama.cpp's (src/llama-sampler.cpp), in float64 instead of float32, and with
ties decided by `candidates.py`. At least one candidate always stays. Running sums of
probabilities go from the best candidate down.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates, best_rows, by_id, deviation, rank, weights

# Below this a draw is greedy anyway; the largest logit divided by it is still finite.
LOWEST_TEMPERATURE: Final = 1e-30


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Exactly the k best; 0 keeps all."""
    if k == 0 or k >= candidates.ids.size:
        return candidates
    return rank(candidates, k)


def top_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """The fewest best candidates that together have probability `p`; 1 keeps all."""
    n_candidates = candidates.ids.size
    if p >= 1 or n_candidates == 1:
        return candidates
    if candidates.ranked:
        reached = weights(candidates).cumsum()
        return candidates.first(_crossing(reached, p * reached[-1], min_keep))
    all_weights = weights(candidates)
    wanted = p * float(all_weights.sum())
    # Sorting 152k logits takes 10 ms and the answer is nearly always among the first few, so
    # sort a longer and longer head. The width changes no bit of the running sum.
    for width in (256, 8192, n_candidates):
        rows = best_rows(candidates.logits, min(width, n_candidates))
        reached = all_weights[rows].cumsum()
        if (reached[-1] >= wanted and min_keep <= width) or rows.size == n_candidates:
            break
    return candidates.take(rows[: _crossing(reached, wanted, min_keep)], ranked=True)


def _crossing(reached: NDArray[np.float64], wanted: float, min_keep: int) -> int:
    """How many to keep: with the first one that reaches what is wanted."""
    return max(int(reached.searchsorted(wanted)) + 1, min_keep)


def min_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """What has at least `p` times the probability of the best; 0 keeps all."""
    if p <= 0:
        return candidates
    logits = candidates.logits
    best = logits[0] if candidates.ranked else logits.max()
    keep = logits >= best + math.log(p)
    n_kept = int(np.count_nonzero(keep))
    if n_kept < min_keep:
        return rank(candidates, min(min_keep, logits.size))
    return candidates.first(n_kept) if candidates.ranked else candidates.where(keep)


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """What is at most n standard deviations of all logits below the best; 0 and less is off."""
    if n <= 0 or candidates.ids.size == 1:
        return candidates
    logits = candidates.logits
    return candidates.where(logits >= logits.max() - n * deviation(logits))


def typical(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Those whose surprise is nearest to the entropy, until their probability exceeds `p`."""
    if p >= 1 or candidates.ids.size == 1:
        return candidates
    ranked = rank(candidates)
    probabilities, surprise, entropy = _entropy(ranked)
    rows = np.abs(surprise - entropy).argsort(kind="stable")
    reached = probabilities[rows].cumsum()
    n_kept = max(int(reached.searchsorted(p, side="right")) + 1, min_keep)
    rows = rows[:n_kept]
    rows.sort()
    return ranked.take(rows, ranked=True)


def _entropy(
    candidates: Candidates,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Probabilities, their surprises in nats, and the expected surprise."""
    scaled = weights(candidates)
    total = scaled.cumsum()[-1]
    probabilities = scaled / total
    surprise = candidates.logits.max() - candidates.logits + math.log(total)
    return probabilities, surprise, float((probabilities * surprise).sum())


def xtc(candidates: Candidates, threshold: float, min_keep: int = 0) -> Candidates:
    """Exclude top choices: of those at least as likely as the threshold, the last one only.

    Whether it happens at all at a position is a coin that the caller has thrown.
    """
    if threshold > 0.5 or candidates.ids.size == 1:
        return candidates
    ranked = rank(candidates)
    scaled = weights(ranked)
    likely = scaled / scaled.cumsum()[-1] >= threshold
    n_out = int(np.count_nonzero(likely)) - 1
    if n_out < 1 or likely.size - n_out < min_keep:
        return candidates
    return Candidates(ranked.ids[n_out:], ranked.logits[n_out:], True)


def temperature(candidates: Candidates, value: float) -> Candidates:
    """Divide by the temperature; 0 leaves the best candidate only.

    No shift by the best logit: a candidate's score then does not depend on others, so masking a
    token that would not have won changes nothing.
    """
    if value == 0:
        return greedy(candidates)
    scaled = candidates.logits / max(value, LOWEST_TEMPERATURE)
    return Candidates(candidates.ids, scaled, candidates.ranked)


def greedy(candidates: Candidates) -> Candidates:
    best = 0 if candidates.ranked else int(candidates.logits.argmax())
    return Candidates(candidates.ids[best : best + 1], candidates.logits[best : best + 1], True)


def dynamic_temperature(
    candidates: Candidates, value: float, spread: float, exponent: float
) -> Candidates:
    """A temperature between value - spread and value + spread, higher the higher the entropy."""
    if spread <= 0:
        return temperature(candidates, value)
    n_candidates = candidates.ids.size
    if n_candidates == 1:
        return candidates
    low, high = max(0.0, value - spread), value + spread
    _, _, entropy = _entropy(by_id(candidates))
    share = min(max(entropy / math.log(n_candidates), 0.0), 1.0)
    return temperature(candidates, low + (high - low) * share**exponent)
