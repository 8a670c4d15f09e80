"""How long drafts should be, from what tokens gain and what rows and drafts cost.

A rate is in tokens per millisecond; a gain is the expected number of tokens that a
draft token adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

_LEAST_GAIN = 0.01  # tokens with less are not considered


def gains_of(rates: Sequence[float]) -> list[float]:
    """The chance that each token and all before it are accepted."""
    product, gains = 1.0, []
    for rate in rates:
        product *= rate
        gains.append(product)
    return gains


def best_rate(gains: Sequence[float], steps: Sequence[float], drafts: Sequence[float]) -> float:
    """The most tokens per ms that one sequence can reach alone by drafts of one length."""
    return max(1.0 / steps[1], best_drafted(gains, steps, drafts)[0])


def best_drafted(
    gains: Sequence[float], steps: Sequence[float], drafts: Sequence[float]
) -> tuple[float, float]:
    """(the most tokens per ms, tokens per step there) with a draft in each step."""
    tokens, best, length = 1.0, 0.0, 1.0
    for n, gain in enumerate(gains, 1):
        tokens += gain
        rate = tokens / (steps[1 + n] + drafts[n])
        if rate > best:
            best, length = rate, tokens
    return best, length


def best_length(
    gains: Sequence[float],
    rows: Sequence[float],
    drafts: Sequence[float],
    rate: float,
) -> tuple[int, float]:
    """(length, tokens gained beyond what its time is worth). `rows[0]` is a step without the
    draft; `drafts` may be empty."""
    n_best, best, tokens = 0, 0.0, 0.0
    for n, gain in enumerate(gains, 1):
        tokens += gain
        ms = rows[n] - rows[0] + (drafts[n] if drafts else 0.0)
        if tokens - rate * ms > best:
            n_best, best = n, tokens - rate * ms
    return n_best, best


class Candidate(NamedTuple):
    """What one sequence could draft."""

    gains: Sequence[float]
    source: str = ""  # a network; empty: the tokens are there already


class Allocation(NamedTuple):
    lengths: list[int]
    tokens: float  # expected, those of sequences without drafts included
    ms: float


def allocate(
    candidates: Sequence[Candidate],
    steps: Sequence[float],
    drafts: Callable[[str, int], Sequence[float]],
    rate: float,
) -> tuple[Allocation, float]:
    """Lengths for all sequences of a step, and the rate that is possible.

    `rate`: what a millisecond is worth at least. Tokens are added in the order of their gain, and
    the best of all beginnings of that order counts: so an expensive row is bought if all that
    follow pay for it together.
    """
    n = len(candidates)
    units = sorted(
        (-gain, i)
        for i, candidate in enumerate(candidates)
        for gain in candidate.gains
        if gain > _LEAST_GAIN
    )[: max(len(steps) - 1 - n, 0)]
    tokens, lengths = float(n), [0] * n
    depth, count, ms_of = dict[str, int](), dict[str, int](), dict[str, float]()
    reached = [(tokens, steps[n])]
    for n_rows, (gain, i) in enumerate(units, n + 1):
        tokens -= gain
        lengths[i] += 1
        if source := candidates[i].source:
            depth[source] = max(depth.get(source, 0), lengths[i])
            count[source] = count.get(source, 0) + (lengths[i] == 1)
            ms_of[source] = drafts(source, count[source])[depth[source]]
        reached.append((tokens, steps[n_rows] + sum(ms_of.values())))
    possible = max(tokens / ms for tokens, ms in reached)
    rate = max(rate, possible)
    n_taken = max(range(len(reached)), key=lambda k: (reached[k][0] - rate * reached[k][1], -k))
    lengths = [0] * n
    for _, i in units[:n_taken]:
        lengths[i] += 1
    return Allocation(lengths, *reached[n_taken]), possible
