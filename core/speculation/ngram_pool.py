"""Texts of one owner and, for every n-gram in them, where it was seen last: what ngram-mod knows.

An entry is a place in a text that is kept, so a hit can be compared token by token, and what comes
after it is copied in runs instead of being looked up token by token. A place is a text's number
and the index of the token after the n-gram, in one integer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Final

from .ngram_estimates import agreed_beyond
from .ngram_index import Roller, goes_on_from

MAX_KEPT: Final = 1 << 17  # tokens of finished texts, all owners together
_RESUMABLE: Final = 8  # latest finished texts of all owners that may go on
_SHIFT: Final = 32
_INDEX: Final = (1 << _SHIFT) - 1


class PoolText(Roller):
    def __init__(self, n: int, number: int) -> None:
        super().__init__(n)
        self.number = number
        # By token: the n-gram before it was seen again since, here or in another text.
        self.is_superseded = bytearray()
        self.n_entered = 0  # n-grams that are in the pool, the first ones


class Pool:
    def __init__(self, n: int) -> None:
        self.n = n
        self._texts: dict[int, PoolText] = {}
        self._latest: dict[int, int] = {}  # place by hash
        self._n_opened = 0

    def __len__(self) -> int:
        return len(self._texts)

    def open(self) -> PoolText:
        self._n_opened += 1
        text = self._texts[self._n_opened] = PoolText(self.n, self._n_opened)
        return text

    def extend(self, text: PoolText, new: Sequence[int]) -> None:
        """The text goes on; each n-gram counts as soon as there is a token after it."""
        text.extend(new)
        text.is_superseded += bytes(len(new))
        latest, texts, n = self._latest, self._texts, self.n
        begin, end = text.n_entered, len(text.tokens) - n
        if end <= begin:
            return
        seen = latest.get
        place = (text.number << _SHIFT) + begin + n
        for value in text.hashes[begin:end]:
            before = seen(value)
            latest[value] = place
            place += 1
            if before is not None:
                texts[before >> _SHIFT].is_superseded[before & _INDEX] = 1
        text.n_entered = end

    def drop(self, text: PoolText) -> None:
        latest, number = self._latest, text.number
        for start in range(text.n_entered):
            value = text.hashes[start]
            place = latest.get(value)
            if place is not None and place >> _SHIFT == number:
                del latest[value]
        del self._texts[number]

    def continue_text(self, text: PoolText, n_max: int) -> tuple[list[int], int]:
        """What comes after its newest tokens, and how far beyond n they agree with the place.

        Each token is the one that came after the latest occurrence of the n tokens before it,
        drafted ones included; up to the first n tokens that nothing is known to follow.
        """
        tokens = text.tokens
        place = self._find(text, len(tokens)) if len(tokens) >= self.n else None
        if place is None:
            return [], 0
        source, at = place
        agreed = agreed_beyond(source.tokens, at - self.n, tokens, len(tokens) - self.n)
        draft: list[int] = []
        visited: dict[tuple[int, int], int] = {}
        while len(draft) < n_max:
            been = visited.setdefault((source.number, at), len(draft))
            if been < len(draft):
                return _go_round(draft, been, n_max), agreed
            end = min(at + n_max - len(draft), len(source.tokens))
            stop = source.is_superseded.find(1, at + 1, end)
            stop = end if stop < 0 else stop
            draft += source.tokens[at:stop]
            later = self._find(source, stop)
            if later is not None:
                source, at = later
            elif stop < len(source.tokens):
                at = stop
            else:
                break
        return draft, agreed

    def _find(self, text: PoolText, end: int) -> tuple[PoolText, int] | None:
        """The latest place after the n tokens that end before `end` of a text."""
        n = self.n
        place = self._latest.get(text.hashes[end - n])
        if place is None:
            return None
        source, at = self._texts[place >> _SHIFT], place & _INDEX
        if source.tokens[at - n : at] != text.tokens[end - n : end]:
            return None
        return source, at


def _go_round(draft: list[int], start: int, n_max: int) -> list[int]:
    """The same place again: from here on the draft repeats itself."""
    period = draft[start:]
    missing = n_max - len(draft)
    return draft + (period * -(-missing // len(period)))[:missing]


class Pools:
    """A pool for each owner; finished texts are kept, the latest of them, up to `max_kept` tokens
    in all. So memory is bounded, and nobody sees what another owner wrote."""

    def __init__(self, n: int, max_kept: int = MAX_KEPT) -> None:
        self._n, self._max_kept = n, max_kept
        self._pools: dict[str, Pool] = {}
        self._finished: OrderedDict[tuple[str, int], PoolText] = OrderedDict()
        self.n_kept = 0

    def __len__(self) -> int:
        return len(self._pools)

    def open(self, owner: str, tokens: Sequence[int] = ()) -> tuple[Pool, PoolText]:
        """For a text that begins with these: the next turn of a chat goes on in what is known of
        the last one, which is not read again."""
        pool = self._pools.get(owner)
        if pool is None:
            pool = self._pools[owner] = Pool(self._n)
        for key in islice(reversed(self._finished), _RESUMABLE):
            if key[0] == owner and goes_on_from(self._finished[key].tokens, tokens):
                text = self._finished.pop(key)
                self.n_kept -= len(text.tokens)
                return pool, text
        return pool, pool.open()

    def finish(self, owner: str, text: PoolText) -> None:
        self._finished[owner, text.number] = text
        self.n_kept += len(text.tokens)
        while self.n_kept > self._max_kept:
            (whose, _), oldest = self._finished.popitem(last=False)
            self.n_kept -= len(oldest.tokens)
            pool = self._pools[whose]
            pool.drop(oldest)
            if not len(pool):
                del self._pools[whose]
