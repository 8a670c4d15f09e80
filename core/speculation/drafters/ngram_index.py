"""Where every n-gram of a sequence, or of all sequences of an owner, was seen last.

The hash of n tokens is a polynomial modulo 2^64. Its low bits are llama.cpp's: with `MOD_FACTOR`
modulo 2^22 the place in ngram-mod's pool, with `MAP_FACTOR` modulo 2^32 the hash of the maps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOD_FACTOR: Final = 6364136223846793005
MAP_FACTOR: Final = 2654435761
MASK: Final = (1 << 64) - 1
BULK: Final = 256  # new tokens from which on numpy computes the hashes
MAX_KEPT: Final = 1 << 17  # tokens of finished sequences, of all owners together
_N_RESUMABLE: Final = 8  # latest finished sequences, of all owners, that may be continued
_MAX_COLLISIONS: Final = 8  # hits of one hash that are compared
_N_COMPARED: Final = 16  # newest tokens that show whether a sequence is the known one
_SHIFT: Final = 32
_INDEX: Final = (1 << _SHIFT) - 1


def hash_of(tokens: Sequence[int], factor: int = MOD_FACTOR) -> int:
    """The definition of the hash."""
    value = 0
    for token in tokens:
        value = (value * factor + token) & MASK
    return value


def window_hashes(tokens: Sequence[int], n: int, factor: int = MOD_FACTOR) -> list[int]:
    """`hash_of` each window of n tokens.

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


def continues(known: list[int], tokens: Sequence[int]) -> bool:
    """Whether `tokens` begin with the known ones, as far as their number, the first one and the
    newest ones show."""
    n = len(known)
    tail = max(0, n - _N_COMPARED)
    return len(tokens) >= n and known[tail:] == tokens[tail:n] and known[:1] == tokens[: min(n, 1)]


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    np.cumprod(powers, out=powers)
    return powers


class HashedTokens:
    """A growing list of tokens and the hash of each of its windows of `n` tokens."""

    def __init__(self, n: int, factor: int = MOD_FACTOR, number: int = 0) -> None:
        self.n, self.factor, self.number = n, factor, number
        self.tokens: list[int] = []
        self.hashes: list[int] = []  # by a window's first token
        self._weight_of_first = pow(factor, n, 1 << 64)
        # For the index: of each window, the place of the one before with its hash, or -1; and by
        # token, whether the window before it was seen again since.
        self.earlier: list[int] = []
        self.is_superseded = bytearray()

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
        value, factor, weight = hashes[-1], self.factor, self._weight_of_first
        for token in new:
            value = (value * factor + token - tokens[-n] * weight) & MASK
            tokens.append(token)
            hashes.append(value)


Place = tuple[HashedTokens, int]  # the token after an n-gram: its list, and its index there


class NgramIndex:
    """The latest place of every n-gram in some lists of tokens.

    A hit is compared token by token, and what comes after it is copied in runs. A place is kept as
    one integer: the number of its list, and the index of the token after the n-gram.
    """

    def __init__(self, n: int, factor: int = MOD_FACTOR) -> None:
        self.n, self._factor = n, factor
        self._lists: dict[int, HashedTokens] = {}
        self._latest: dict[int, int] = {}  # place by hash
        self._n_opened = 0

    def __len__(self) -> int:
        return len(self._lists)

    def open(self) -> HashedTokens:
        self._n_opened += 1
        hashed = self._lists[self._n_opened] = HashedTokens(self.n, self._factor, self._n_opened)
        return hashed

    def extend(self, hashed: HashedTokens, new: Sequence[int]) -> None:
        """Append to a list. Each n-gram counts as soon as there is a token after it."""
        hashed.extend(new)
        hashed.is_superseded += bytes(len(new))
        latest, lists, earlier = self._latest, self._lists, hashed.earlier
        place = (hashed.number << _SHIFT) + len(earlier) + self.n
        for value in hashed.hashes[len(earlier) : len(hashed.tokens) - self.n]:
            before = latest.get(value, -1)
            latest[value] = place
            earlier.append(before)
            place += 1
            if before >= 0:
                lists[before >> _SHIFT].is_superseded[before & _INDEX] = 1

    def drop(self, hashed: HashedTokens) -> None:
        latest, number = self._latest, hashed.number
        for value in hashed.hashes[: len(hashed.earlier)]:
            place = latest.get(value)
            if place is not None and place >> _SHIFT == number:
                del latest[value]
        del self._lists[number]

    def places(self, hashed: HashedTokens, end: int) -> Iterator[Place]:
        """Every place after a window whose hash is that of the n tokens before `end`, the latest
        first."""
        place = self._latest.get(hashed.hashes[end - self.n], -1) if end >= self.n else -1
        while (source := self._lists.get(place >> _SHIFT)) is not None:
            at = place & _INDEX
            yield source, at
            place = source.earlier[at - self.n]

    def find(self, hashed: HashedTokens, end: int) -> Place | None:
        """The latest place after the n tokens before `end`."""
        n = self.n
        for source, at in islice(self.places(hashed, end), _MAX_COLLISIONS):
            if source.tokens[at - n : at] == hashed.tokens[end - n : end]:
                return source, at
        return None

    def continue_from(self, place: Place, n_max: int, *, relinks: bool) -> list[int]:
        """The tokens from a place on; behind the end of its list, what followed that end earlier.

        With `relinks`, each token follows the latest occurrence of the n tokens before it, drafted
        ones included. The result has fewer than `n_max` tokens if nothing is known to follow.
        """
        source, at = place
        draft: list[int] = []
        visited: dict[tuple[int, int], int] = {}
        while len(draft) < n_max:
            first = visited.setdefault((source.number, at), len(draft))
            if first < len(draft):  # here again: the draft repeats itself
                period = draft[first:]
                missing = n_max - len(draft)
                return draft + (period * -(-missing // len(period)))[:missing]
            end = min(at + n_max - len(draft), len(source.tokens))
            stop = source.is_superseded.find(1, at + 1, end) if relinks else -1
            stop = end if stop < 0 else stop
            draft += source.tokens[at:stop]
            later = self.find(source, stop)
            if later is not None:
                source, at = later
            elif stop < len(source.tokens):
                at = stop
            else:
                break
        return draft


class OwnerIndexes:
    """An index for each owner. Lists of finished sequences are kept, the latest of them, up to
    `max_kept` tokens in all: memory is bounded, and no owner's tokens reach another one."""

    def __init__(self, n: int, max_kept: int = MAX_KEPT) -> None:
        self._n, self._max_kept = n, max_kept
        self._indexes: dict[str, NgramIndex] = {}
        self._finished: OrderedDict[tuple[str, int], HashedTokens] = OrderedDict()
        self.n_kept = 0

    def __len__(self) -> int:
        return len(self._indexes)

    def open(self, owner: str, tokens: Sequence[int]) -> tuple[NgramIndex, HashedTokens]:
        """An index and a list in it for a sequence that begins with `tokens`. The next turn of a
        chat continues the list of the last one, which is not read again."""
        index = self._indexes.get(owner)
        if index is None:
            index = self._indexes[owner] = NgramIndex(self._n)
        for key in islice(reversed(self._finished), _N_RESUMABLE):
            if key[0] == owner and continues(self._finished[key].tokens, tokens):
                hashed = self._finished.pop(key)
                self.n_kept -= len(hashed.tokens)
                return index, hashed
        return index, index.open()

    def finish(self, owner: str, hashed: HashedTokens) -> None:
        self._finished[owner, hashed.number] = hashed
        self.n_kept += len(hashed.tokens)
        while self.n_kept > self._max_kept:
            (whose, _), oldest = self._finished.popitem(last=False)
            self.n_kept -= len(oldest.tokens)
            index = self._indexes[whose]
            index.drop(oldest)
            if not len(index):
                del self._indexes[whose]
