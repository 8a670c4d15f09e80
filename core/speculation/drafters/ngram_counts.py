"""How often each token followed each n-gram of 1 to 4 tokens: the counts of ngram-cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

MAX_N: Final = 4
_BITS: Final = 32  # of a token in a packed n-gram
MASKS: Final = tuple((1 << _BITS * n) - 1 for n in range(MAX_N + 1))


class Followers:
    """Counts of the tokens after one n-gram. The best is the most frequent one, and among equals
    the first that became so frequent."""

    __slots__ = ("best", "best_count", "counts", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = self.best_count = 0
        self.best = -1

    def add(self, token: int, times: int = 1) -> None:
        count = self.counts.get(token, 0) + times
        self.counts[token] = count
        self.total += times
        if count > self.best_count:
            self.best, self.best_count = token, count


# Most n-grams of a text are seen once; then the token itself stands for its followers.
FollowersOrToken = int | Followers


def pack(gram: Sequence[int]) -> int:
    key = 0
    for token in gram:
        key = key << _BITS | token
    return key


def unpack(key: int, n: int) -> list[int]:
    return [key >> _BITS * i & MASKS[1] for i in range(n - 1, -1, -1)]


class GramCounts:
    def __init__(self) -> None:
        self.tables: tuple[dict[int, FollowersOrToken], ...] = tuple({} for _ in range(MAX_N + 1))

    def add(self, n: int, key: int, token: int, times: int = 1) -> None:
        table = self.tables[n]
        entry = table.get(key)
        if entry is None and times == 1:
            table[key] = token
            return
        if not isinstance(entry, Followers):
            followers = table[key] = Followers()
            if entry is not None:
                followers.add(entry)
            entry = followers
        entry.add(token, times)

    def learn(self, tokens: Sequence[int], first: int) -> None:
        """Count each token from index `first` on after the n-grams before it."""
        lead = max(0, first - MAX_N)
        near = tokens[lead:]
        keys = near  # packed n-grams by their first token
        for n in range(1, MAX_N + 1):
            skipped = max(0, first - lead - n)
            table = self.tables[n]
            get = table.get
            for key, token in zip(keys[skipped:], near[skipped + n :], strict=False):
                entry = get(key)
                if entry is None:  # as for most: without a call
                    table[key] = token
                else:
                    self.add(n, key, token)
            keys = [key << _BITS | token for key, token in zip(keys, near[n:], strict=False)]

    def merge(self, other: GramCounts) -> None:
        for n in range(1, MAX_N + 1):
            for key, token, times in other.items(n):
                self.add(n, key, token, times)

    def items(self, n: int) -> Iterator[tuple[int, int, int]]:
        """(packed n-gram, token, times)"""
        for key, entry in self.tables[n].items():
            counts = entry.counts if isinstance(entry, Followers) else {entry: 1}
            for token, times in counts.items():
                yield key, token, times
