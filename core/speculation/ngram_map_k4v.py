"""ngram-map-k4v: for every n-gram ("key") up to four continuations ("values") are counted, and
the one that is clearly the most frequent is drafted."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Final

from .ngram_base import NO_GUESS, Guess, NgramSpeculator
from .ngram_estimates import agreed_beyond, n_common
from .ngram_map import MapText
from .options import NGRAM_MAP_K4V, NgramSizes

if TYPE_CHECKING:
    from .table import Setting

MAX_VALUES: Final = 4


class Key:
    """Which values followed it, and how often. Each occurrence is counted once."""

    __slots__ = ("counted", "counts", "values")

    def __init__(self) -> None:
        self.counted = -1  # the latest occurrence that is in the counts
        self.values: list[int] = []  # where in the text each begins
        self.counts: list[int] = []


class K4vText(MapText):
    """`trust` is kept by value: by the place of its first token, which says the key as well."""

    def __init__(self, sizes: NgramSizes) -> None:
        super().__init__(sizes)
        self._keys: dict[int, Key] = {}

    def guess(self, n_max: int) -> Guess:
        index, sizes = self.index, self.sizes
        if index.find() < 0 or index.n_hits < sizes.min_hits:
            return NO_GUESS
        key = self._count_newest()
        if not key.counts:
            return NO_GUESS
        best = max(key.counts)
        others = sum(key.counts) - best
        if others and best < 2 * others:
            return NO_GUESS
        value = key.values[key.counts.index(best)]
        trust = self.trust.get(value)
        tokens, n = index.text.tokens, sizes.size_n
        n_max = min(n_max, sizes.size_m if trust is None else trust.n_draft)
        draft = tokens[value : value + n_max]
        agreed = agreed_beyond(tokens, value - n, tokens, len(tokens) - n)
        chances = self.chances.of(agreed, len(draft))
        self.basis = [agreed, value]
        if others:
            self._doubt(key, value, draft, chances)
        return Guess(draft, chances if trust is None else trust.mix(chances))

    def _count_newest(self) -> Key:
        """The key of the newest tokens, its counts brought up to date. Only occurrences that are
        followed by a whole value count; those that still wait for one are at most n + m."""
        index, n, m = self.index, self.sizes.size_n, self.sizes.size_m
        tokens = index.text.tokens
        key = self._keys.get(index.text.hashes[-1])
        if key is None:
            key = self._keys[index.text.hashes[-1]] = Key()
        newest, fresh = tokens[-n:], []
        at = index.previous[-1]
        while at > key.counted:
            if at + n + m <= len(tokens):
                fresh.append(at)
            at = index.previous[at]
        for at in reversed(fresh):
            key.counted = at
            if tokens[at : at + n] == newest:
                self._count(key, at + n)
        return key

    def _count(self, key: Key, at: int) -> None:
        tokens, m = self.index.text.tokens, self.sizes.size_m
        value = tokens[at : at + m]
        for i, known in enumerate(key.values):
            if tokens[known : known + m] == value:
                key.counts[i] += 1
                return
        if len(key.values) < MAX_VALUES:
            key.values.append(at)
            key.counts.append(1)

    def _doubt(self, key: Key, best: int, draft: list[int], chances: list[float]) -> None:
        """Lower the chances where another value parts from the best one, by its share of all
        that had agreed so far."""
        tokens = self.index.text.tokens
        partings = sorted(
            (n_common(draft, tokens[value : value + len(draft)]), count)
            for value, count in zip(key.values, key.counts, strict=True)
            if value != best
        )
        left = sum(key.counts)
        for place, count in partings:
            if place < len(draft):
                chances[place] *= (left - count) / left
                left -= count


class NgramMapK4v(NgramSpeculator):
    def __init__(self, sizes: NgramSizes, eog_ids: Set[int]) -> None:
        super().__init__(NGRAM_MAP_K4V, eog_ids, sizes.size_m)
        self._sizes = sizes

    def open(self, owner: str) -> K4vText:
        return K4vText(self._sizes)


def make(setting: Setting) -> NgramMapK4v:
    return NgramMapK4v(setting.options.ngram_map_k4v, setting.target.tokenizer.eog_ids)
