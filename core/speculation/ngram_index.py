"""Where every n-gram of a growing text was last seen: rolling hashes, hits compared token by token.

The hash of n tokens is a polynomial modulo 2^64. Its low bits are llama.cpp's: with `MOD_FACTOR`
modulo 2^22 the place in ngram-mod's pool, with `MAP_FACTOR` modulo 2^32 the hash of the maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOD_FACTOR: Final = 6364136223846793005
MAP_FACTOR: Final = 2654435761
MASK: Final = (1 << 64) - 1
BULK: Final = 256  # from so many new tokens on, numpy computes the hashes: 150 us when cold
_MAX_COLLISIONS: Final = 8  # of 64-bit hashes, in a row: more are not worth a look
_LOOKS_BACK: Final = 16


def hash_of(tokens: Sequence[int], factor: int = MOD_FACTOR) -> int:
    """The definition."""
    value = 0
    for token in tokens:
        value = (value * factor + token) & MASK
    return value


def window_hashes(tokens: Sequence[int], n: int, factor: int = MOD_FACTOR) -> list[int]:
    """`hash_of` every n tokens in a row.

    With f the factor, which is odd and so has an inverse: the sum of tokens[i] * f^-i over a
    window is a difference of two running sums; times a power of f it is the hash.
    """
    if len(tokens) < n:
        return []
    n_windows = len(tokens) - n + 1
    ids = np.array(tokens, np.int64).astype(np.uint64)
    down = _powers(pow(factor, -1, 1 << 64), len(tokens))
    sums = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum(ids * down, out=sums[1:])
    up = _powers(factor, n_windows) * np.uint64(pow(factor, n - 1, 1 << 64))
    hashes: list[int] = ((sums[n:] - sums[:-n]) * up).tolist()
    return hashes


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    np.cumprod(powers, out=powers)
    return powers


class Roller:
    """A text and the hash of each of its windows, kept up to date as it grows."""

    def __init__(self, n: int, factor: int = MOD_FACTOR) -> None:
        self.n, self.factor = n, factor
        self.tokens: list[int] = []
        self.hashes: list[int] = []  # of each window, by its first token
        self._out = pow(factor, n, 1 << 64)  # what the token that leaves a window is worth

    def extend(self, new: Sequence[int]) -> None:
        tokens, hashes, n = self.tokens, self.hashes, self.n
        if len(new) >= BULK:
            tokens += new
            hashes += window_hashes(tokens[len(hashes) :], n, self.factor)
            return
        if not hashes:
            missing = n - len(tokens)
            tokens += new[:missing]
            if len(tokens) < n:
                return
            hashes.append(hash_of(tokens, self.factor))
            new = new[missing:]
        value, factor, out = hashes[-1], self.factor, self._out
        for token in new:
            value = (value * factor + token - tokens[-n] * out) & MASK
            tokens.append(token)
            hashes.append(value)


class NgramIndex:
    """For every window of a text, where its tokens were before. Work is per new token."""

    def __init__(self, n: int, factor: int = MOD_FACTOR) -> None:
        self.n = n
        self.text = Roller(n, factor)
        # Of each window, by its first token: the latest earlier one of the same hash, or -1, and
        # how many there are.
        self.previous: list[int] = []
        self.rank: list[int] = []
        self._latest: dict[int, int] = {}

    def extend(self, new: Sequence[int]) -> None:
        self.text.extend(new)
        previous, rank, latest = self.previous, self.rank, self._latest
        hashes = self.text.hashes
        for start in range(len(previous), len(hashes)):
            value = hashes[start]
            before = latest.get(value, -1)
            latest[value] = start
            previous.append(before)
            rank.append(rank[before] + 1 if before >= 0 else 0)

    @property
    def n_hits(self) -> int:
        """Earlier windows that hash as the newest one does."""
        return self.rank[-1] if self.rank else 0

    def find(self) -> int:
        """Where the n newest tokens were before, the latest time; -1: nowhere."""
        previous = self.previous
        if not previous:
            return -1
        tokens, n = self.text.tokens, self.n
        at, newest = previous[-1], tokens[-n:]
        for _ in range(_MAX_COLLISIONS):
            if at < 0 or tokens[at : at + n] == newest:
                return at
            at = previous[at]
        return -1


def goes_on_from(known: list[int], tokens: Sequence[int]) -> bool:
    """Whether a text begins with what is known of it, as far as its length and a few of its tokens
    tell: those that it had last, and the first."""
    n = len(known)
    if len(tokens) < n:
        return False
    tail = max(0, n - _LOOKS_BACK)
    return known[tail:] == tokens[tail:n] and known[:1] == tokens[: min(n, 1)]


def repeat_from(tokens: list[int], start: int, count: int) -> list[int]:
    """So many tokens from `start` on; where the text ends, it is taken to repeat itself."""
    run = tokens[start : start + count]
    if 0 < len(run) < count:
        run = (run * -(-count // len(run)))[:count]
    return run
