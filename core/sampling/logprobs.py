"""Log-probabilities: of the model itself, before any sampler changes them, or of a distribution."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .candidates import best_rows, total_weight
from .distribution import Distribution
from .finite import check_finite


def logprobs(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of every token; same shape, last axis V."""
    check_finite(logits)
    rows = logits.reshape(-1, logits.shape[-1])
    return np.stack([_normalised(row, row) for row in rows]).reshape(logits.shape)


def top_logprobs(logits: NDArray[np.float32], count: int) -> list[tuple[int, float]]:
    """The `count` best tokens of one row (V,), best first, ties by id; the values are those of
    `logprobs` to the last bit. Masked tokens count as the worst, with -inf."""
    check_finite(logits)
    if count <= 0:
        return []
    best = best_rows(logits, min(count, logits.size))
    return list(zip(best.tolist(), _normalised(logits[best], logits).tolist(), strict=True))


def token_logprob(logits: NDArray[np.float32], token: int) -> float:
    """Of one token of one row."""
    check_finite(logits)
    return float(_normalised(logits[[token]], logits)[0])


def distribution_logprobs(
    distribution: Distribution, token: int, count: int
) -> tuple[float, list[tuple[int, float]]]:
    """Of a token, and of the `count` most likely ones, these first, ties by id."""
    shares = distribution.probabilities
    best = best_rows(shares, min(count, shares.size)).tolist() if count > 0 else ()
    own = distribution(token)
    top = [(int(distribution.ids[row]), math.log(shares[row])) for row in best]
    return math.log(own) if own else -math.inf, top


def _normalised(values: NDArray[np.float32], row: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities of some logits of a row."""
    best = float(row.max())
    wide = values.astype(np.float64)
    wide -= best
    wide -= math.log(total_weight(row, best))
    return wide
