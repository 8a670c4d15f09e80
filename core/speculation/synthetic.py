"""Synthetic acceptance: how many draft tokens hold is drawn at random, for benchmarks.

`rates[i]` is the probability that the first i + 1 tokens of a draft all hold. Given as they are,
or by the mean number of tokens that a step is to make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ..errors import ConfigError

_HALVINGS: Final = 32


def rates_for_length(length: float, n_places: int) -> tuple[float, ...]:
    """p, p^2, … such that a step makes `length` tokens on average: 1 + p + p^2 + …"""
    check_length(length)
    if not length <= n_places + 1:
        raise ConfigError(
            f"spec-synth-len is {length:g}, but drafts of at most {n_places} tokens make at most "
            f"{n_places + 1} per step"
        )
    if length == n_places + 1:
        return (1.0,) * n_places
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_short = sum(_powers(middle, n_places)) < length - 1
        low, high = (middle, high) if is_short else (low, middle)
    return _powers((low + high) / 2 if length > 1 else 0.0, n_places)


def chances_of(rates: Sequence[float]) -> tuple[float, ...]:
    """The probability of each token to hold if those before it did."""
    return tuple(now / before if before else 0.0 for before, now in pairwise((1.0, *rates)))


def check_length(length: float) -> None:
    if not (math.isfinite(length) and length >= 1):
        raise ConfigError(
            f"spec-synth-len must be at least 1, the token that every step makes, got {length:g}"
        )


def check_rates(rates: Sequence[float], n_places: int | None = None) -> None:
    """`n_places`: tokens of the longest draft, where that is known."""
    for i, rate in enumerate(rates):
        if not (math.isfinite(rate) and 0 <= rate <= 1):
            raise ConfigError(f"spec-synth-rates: {rate:g} at place {i + 1} is no probability")
    for i, (before, now) in enumerate(pairwise(rates)):
        if now > before:
            raise ConfigError(
                f"spec-synth-rates must not rise, but {now:g} at place {i + 2} follows {before:g}: "
                "a token holds only where those before it do"
            )
    if n_places is not None and len(rates) != n_places:
        raise ConfigError(
            f"spec-synth-rates needs {n_places} rates, one for each token of the longest draft, "
            f"got {len(rates)}"
        )


def _powers(p: float, n: int) -> tuple[float, ...]:
    return tuple(p**i for i in range(1, n + 1))
