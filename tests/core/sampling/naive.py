"""What the samplers mean, written as plain loops over Python floats. For tests only.

A distribution is a list of (token, logit), best first, ties by token id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Ranked = list[tuple[int, float]]


def rank(pairs: Sequence[tuple[int, float]]) -> Ranked:
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def probabilities(ranked: Ranked) -> list[float]:
    best = max(logit for _, logit in ranked)
    weights = [math.exp(logit - best) for _, logit in ranked]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def entropy(ranked: Ranked) -> float:
    return math.fsum(-p * math.log(p) for p in probabilities(ranked) if p > 0)


def top_k(ranked: Ranked, k: int) -> Ranked:
    return ranked[:k] if k else ranked


def top_p(ranked: Ranked, p: float, min_keep: int = 0) -> Ranked:
    if p >= 1:
        return ranked
    reached = 0.0
    for n, chance in enumerate(probabilities(ranked), 1):
        reached += chance
        if reached >= p and n >= min_keep:
            return ranked[:n]
    return ranked


def min_p(ranked: Ranked, p: float, min_keep: int = 0) -> Ranked:
    chances = probabilities(ranked)
    return [
        pair
        for n, (pair, chance) in enumerate(zip(ranked, chances, strict=True))
        if chance >= p * chances[0] or n < min_keep
    ]


def top_n_sigma(ranked: Ranked, n: float) -> Ranked:
    mean = math.fsum(logit for _, logit in ranked) / len(ranked)
    variance = math.fsum((logit - mean) ** 2 for _, logit in ranked) / len(ranked)
    return [pair for pair in ranked if pair[1] >= ranked[0][1] - n * math.sqrt(variance)]


def typical(ranked: Ranked, p: float, min_keep: int = 0) -> Ranked:
    chances, expected = probabilities(ranked), entropy(ranked)
    order = sorted(range(len(ranked)), key=lambda n: abs(-math.log(chances[n]) - expected))
    kept, reached = [], 0.0
    for n in order:
        kept.append(n)
        reached += chances[n]
        if reached > p and len(kept) >= min_keep:
            break
    return [ranked[n] for n in sorted(kept)]


def xtc(ranked: Ranked, threshold: float, min_keep: int = 0) -> Ranked:
    n_likely = sum(chance >= threshold for chance in probabilities(ranked))
    left = ranked[n_likely - 1 :] if n_likely > 1 else ranked
    return left if len(left) >= min_keep else ranked


def penalties(
    ranked: Ranked, window: Sequence[int], repeat: float, presence: float, frequency: float
) -> Ranked:
    changed = []
    for token, logit in ranked:
        count = window.count(token)
        if count:
            logit = logit * repeat if logit <= 0 else logit / repeat
            logit -= count * frequency + presence
        changed.append((token, logit))
    return rank(changed)


def dry_lengths(
    window: Sequence[int], breakers: Mapping[int, Sequence[tuple[int, ...]]]
) -> dict[int, int]:
    """For every token that came after a copy of the window's end: the longest such copy, cut
    where a breaker ended."""
    limit = len(window)
    for stop in range(len(window), 0, -1):
        fits = [
            1 + len(tail)
            for tail in breakers.get(window[stop - 1], [])
            if tuple(window[stop : stop + len(tail)]) == tail
        ]
        if fits:
            limit = len(window) - (stop - 1) - max(fits)
            break
    found: dict[int, int] = {}
    for end in range(len(window) - 1):
        length = 0
        while length <= end and window[end - length] == window[len(window) - 1 - length]:
            length += 1
        follower = window[end + 1]
        found[follower] = max(found.get(follower, 0), min(length, limit))
    return found
