"""How long drafts should be, from what tokens are expected to gain and what rows cost: plain
arithmetic on lists. A rate is in tokens per millisecond; a gain is a number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Option(NamedTuple):
    """What one text could have drafted."""

    gains: Sequence[float]  # of each token: the chance that it and all before it are taken
    source: str = ""  # empty: the tokens are there already


def gains_of(rates: Sequence[float]) -> list[float]:
    product, gains = 1.0, []
    for rate in rates:
        product *= rate
        gains.append(product)
    return gains


def best_rate(gains: Sequence[float], steps: Sequence[float], drafts: Sequence[float]) -> float:
    """The most tokens per ms that one text can reach alone by drafts of one length."""
    tokens, best = 1.0, 1.0 / steps[1]
    for n, gain in enumerate(gains, 1):
        tokens += gain
        rate = tokens / (steps[1 + n] + drafts[n])
        best = rate if rate > best else best
    return best


def best_length(
    gains: Sequence[float],
    rows: Sequence[float],
    first: int,
    drafts: Sequence[float],
    rate: float,
) -> tuple[int, float]:
    """(length, tokens gained beyond what its time is worth). `rows[first]` is a step without the
    draft, `drafts` may be empty."""
    n_best, best, tokens, start = 0, 0.0, 0.0, rows[first]
    for n, gain in enumerate(gains, 1):
        tokens += gain
        ms = rows[first + n] - start + (drafts[n] if drafts else 0.0)
        value = tokens - rate * ms
        if value > best:
            n_best, best = n, value
    return n_best, best


class Allocation(NamedTuple):
    lengths: list[int]
    tokens: float  # expected, those without drafts included
    ms: float


def allocate(
    options: Sequence[Option],
    steps: Sequence[float],
    drafts: Callable[[str, int], Sequence[float]],
    rate: float,
) -> tuple[Allocation, float]:
    """Lengths for all texts of a step, and the rate that is possible. `rate`: what a millisecond
    is worth at least. Tokens are taken in the order of their gain; of all beginnings of that
    order the best counts, so that a step of the costs is climbed if all together pay for it."""
    n = len(options)
    units = sorted(
        (-gain, i) for i, option in enumerate(options) for gain in option.gains if gain > 0.01
    )
    units = units[: max(len(steps) - 1 - n, 0)]
    tokens, n_rows, drafting = float(n), n, 0.0
    lengths, depth, count = [0] * n, dict[str, int](), dict[str, int]()
    of_source: dict[str, float] = {}
    reached = [(tokens, steps[n])]
    for gain, i in units:
        tokens -= gain
        n_rows += 1
        lengths[i] += 1
        if source := options[i].source:
            depth[source] = max(depth.get(source, 0), lengths[i])
            count[source] = count.get(source, 0) + (lengths[i] == 1)
            of_source[source] = drafts(source, count[source])[depth[source]]
            drafting = sum(of_source.values())
        reached.append((tokens, steps[n_rows] + drafting))
    possible = max(tokens / ms for tokens, ms in reached)
    rate = max(rate, possible)
    n_taken = max(range(len(reached)), key=lambda k: (reached[k][0] - rate * reached[k][1], -k))
    lengths = [0] * n
    for _, i in units[:n_taken]:
        lengths[i] += 1
    return Allocation(lengths, *reached[n_taken]), possible
