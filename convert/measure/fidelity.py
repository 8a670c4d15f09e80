"""From scored tokens to figures with their errors.

Errors are standard errors over tokens, as llama-perplexity prints them: they take tokens for
independent. Tokens of one chunk are not, so intervals are bootstrapped over chunks.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.bench.intervals import LEVEL, MIN_BLOCKS, RESAMPLES, Resampled, draw_totals
from .divergence import ScoredTokens

Floats = NDArray[np.float64]

_SEED: Final = 0  # of the drawn chunks: a file has the same intervals every time


class Estimate(NamedTuple):
    value: float
    error: float  # standard error
    low: float | None = None  # of the interval; None: there is none
    high: float | None = None


class Fidelity(NamedTuple):
    """What a measurement says. Probabilities and shares are fractions of 1; KL is in nats."""

    n_chunks: int
    n_tokens: int
    perplexity: Estimate
    base_perplexity: Estimate
    ln_ratio: Estimate  # logarithm of the ratio of the perplexities
    kl: Estimate  # mean
    kl_quantiles: dict[float, float]  # by the share of tokens that have no more; 1: the maximum
    same_top: Estimate
    delta_p: Estimate  # mean
    rms_delta_p: Estimate


QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)


def summarise(tokens: ScoredTokens) -> Fidelity:
    """`tokens`: arrays of (chunks, tokens)."""
    n_chunks, n_each = tokens.kl.shape
    ratio = tokens.base_log_p - tokens.log_p
    levels = np.quantile(tokens.kl, QUANTILES).tolist()
    return Fidelity(
        n_chunks,
        n_chunks * n_each,
        _perplexity(tokens.log_p),
        _perplexity(tokens.base_log_p),
        _mean_over_chunks(ratio),
        _mean_over_chunks(tokens.kl, at_least=0.0),
        dict(zip(QUANTILES, levels, strict=True)),
        _mean_over_chunks(tokens.same_top.astype(np.float64), at_least=0.0, at_most=1.0),
        _mean(tokens.delta_p),
        _root_mean_square(tokens.delta_p),
    )


def _mean(values: Floats) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(values.size))


def _perplexity(log_p: Floats) -> Estimate:
    mean, error, *_ = _mean(-log_p)
    value = math.exp(mean)
    return Estimate(value, value * error)


def _root_mean_square(values: Floats) -> Estimate:
    mean, error, *_ = _mean(values**2)
    value = math.sqrt(mean)
    return Estimate(value, error / (2 * value) if value else 0.0)


def _mean_over_chunks(
    values: Floats, at_least: float = -math.inf, at_most: float = math.inf
) -> Estimate:
    """The mean of (chunks, tokens), with an interval if there are chunks enough."""
    found, n = _mean(values), len(values)
    if n < MIN_BLOCKS:
        return found
    drawn = draw_totals(values.mean(axis=1)[:, None], RESAMPLES, np.random.default_rng(_SEED))
    resampled = Resampled(found.value, np.abs(drawn[:, 0] / n - found.value), n - 1)
    reach = resampled.reach((1 - LEVEL) / 2)
    low, high = max(found.value - reach, at_least), min(found.value + reach, at_most)
    return Estimate(found.value, found.error, low, high)
