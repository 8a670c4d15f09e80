"""Suffix arrays: texts with their places in the order of what stands before them.

They are made of 32-bit words, tokens and marks: `backend/cpu/kernels/suffix_order.py` defines the
order. A `SuffixArray` does not change; a `GrowingText` has one that is extended token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np

from .suffix_native import MARK, Address, Words, native, sort_places

_BULK: Final = 256  # new words from which on they are sorted and merged, not inserted
_LEAST_TAIL: Final = 1024  # places that are kept by insertion
_TAIL_SHARE: Final = 16  # the same, as one part of so many
_FIRST_ROOM: Final = 256  # words
_MAX_ARRAYS: Final = 12  # of a shelf; the smallest neighbours are joined beyond that
_OVERHEAD: Final = 128  # words that the objects of an array take
_N_COMPARED: Final = 16  # newest tokens that show whether a text goes on


def text_of(tokens: Sequence[int]) -> Words:
    """A text that begins with its mark."""
    words = np.empty(len(tokens) + 1, np.uint32)
    words[0] = MARK
    words[1:] = tokens
    return words


def places_of(words: Words) -> Words:
    """The places that a token follows and that have a context."""
    is_token = words < MARK
    found: Words = (np.flatnonzero(is_token[1:] & is_token[:-1]) + 1).astype(np.uint32)
    return found


def merge_orders(a: Words, a_order: Words, b: Words, b_order: Words, shift: int = 0) -> Words:
    """The order of both; `shift` is added to the places of the second."""
    out = np.empty(len(a_order) + len(b_order), np.uint32)
    state = np.array([0, 0, len(out)], np.int64)
    native().merge(
        a.ctypes.data, a_order.ctypes.data, b.ctypes.data, b_order.ctypes.data, shift,
        len(a_order), len(b_order), out.ctypes.data, state.ctypes.data,
    )  # fmt: skip
    return out


class SuffixArray:
    """One text, or several behind each other. The first word is a mark."""

    def __init__(self, words: Words, order: Words) -> None:
        self.words, self.order = words, order
        self.address = Address(words.ctypes.data, len(words), order.ctypes.data, len(order))

    @classmethod
    def of(cls, words: Words) -> Self:
        return cls(words, sort_places(words, places_of(words)))

    @classmethod
    def joined(cls, a: SuffixArray, b: SuffixArray) -> Self:
        order = merge_orders(a.words, a.order, b.words, b.order, len(a.words))
        return cls(np.concatenate([a.words, b.words]), order)

    def __len__(self) -> int:
        return len(self.words)


class ArrayShelf:
    """Suffix arrays, the oldest first. Look-ups go through all of them, so they stay few."""

    def __init__(self) -> None:
        self.arrays: list[SuffixArray] = []
        self.n_words = 0
        self._addresses: tuple[Address, ...] | None = ()

    @property
    def size(self) -> int:
        """Memory, in words."""
        return 2 * self.n_words + _OVERHEAD * len(self.arrays)

    def add(self, array: SuffixArray) -> None:
        self.arrays.append(array)
        self.n_words += len(array)
        self._addresses = None
        if len(self.arrays) > _MAX_ARRAYS:
            pairs = zip(self.arrays, self.arrays[1:], strict=False)
            sizes = [len(a) + len(b) for a, b in pairs]
            i = sizes.index(min(sizes))
            self.arrays[i : i + 2] = [SuffixArray.joined(*self.arrays[i : i + 2])]

    def take(self, i: int) -> SuffixArray:
        array = self.arrays.pop(i)
        self.n_words -= len(array)
        self._addresses = None
        return array

    def shorten(self, first: int, covered: int, longest: int) -> int:
        """Drop the oldest arrays as long as they end before word `covered`, or all have more than
        `longest` words. `first`: the word at which the oldest begins; returns the new one."""
        while self.arrays:
            end = first + len(self.arrays[0])
            if end > covered and self.n_words <= longest:
                break
            first += len(self.take(0))
        return first

    def addresses(self) -> tuple[Address, ...]:
        """The latest first."""
        if self._addresses is None:
            self._addresses = tuple(array.address for array in reversed(self.arrays))
        return self._addresses


class _Room:
    """An array with room behind its elements, and its address, which numpy is slow to tell."""

    def __init__(self, array: Words, n: int) -> None:
        self.array, self.n, self.at = array, n, array.ctypes.data

    def make(self, n: int) -> None:
        """Let there be `n` elements."""
        if n > len(self.array):
            larger = np.empty(max(n, 2 * len(self.array)), np.uint32)
            larger[: self.n] = self.array[: self.n]
            self.array, self.at = larger, larger.ctypes.data
        self.n = n


class GrowingText:
    """A text and two orders of its places: of most of them, and of the latest, where a new one is
    inserted in little time."""

    def __init__(self, known: SuffixArray | None = None) -> None:
        """`known`: of one text, which goes on."""
        if known is None:
            known = SuffixArray.of(text_of(()))
        self._words = _Room(known.words, len(known))
        self._base, self._base_at = known.order, known.address.order
        self._tail = _Room(np.empty(_FIRST_ROOM, np.uint32), 0)

    @property
    def words(self) -> Words:
        return self._words.array[: self._words.n]

    def extend(self, new: Sequence[int]) -> None:
        words, old = self._words, self._words.n
        end, first = old + len(new), max(old, 2)  # the place of the first token has no context
        words.make(end)
        words.array[old:end] = new
        if end - first >= _BULK:
            self._fold()
            places = np.arange(first, end, dtype=np.uint32)
            self._add_to_base(sort_places(words.array, places))
        elif end > first:
            tail, n = self._tail, self._tail.n
            tail.make(n + end - first)
            native().insert(words.at, tail.at, n, first, end)
            if tail.n > max(_LEAST_TAIL, len(self._base) // _TAIL_SHARE):
                self._fold()

    def addresses(self) -> tuple[Address, Address]:
        """For a look-up, until the text goes on."""
        words, tail = self._words, self._tail
        return (
            Address(words.at, words.n, self._base_at, len(self._base)),
            Address(words.at, words.n, tail.at, tail.n),
        )

    def finished(self) -> SuffixArray:
        self._fold()
        return SuffixArray(self.words.copy(), self._base)

    def _fold(self) -> None:
        if self._tail.n:
            self._add_to_base(self._tail.array[: self._tail.n])
            self._tail.n = 0

    def _add_to_base(self, order: Words) -> None:
        words = self._words.array
        self._base = merge_orders(words, self._base, words, order)
        self._base_at = self._base.ctypes.data


def goes_on(known: Words, tokens: Sequence[int]) -> bool:
    """Whether `tokens` begin with those of a text, as far as their number, the first one and the
    newest ones show."""
    n = len(known) - 1
    if not 0 < n <= len(tokens) or known[1] != tokens[0]:
        return False
    tail = max(0, n - _N_COMPARED)
    newest: list[int] = known[tail + 1 :].tolist()
    return newest == list(tokens[tail:n])


def n_common_words(a: Words, b: Words) -> int:
    """Length of the common beginning."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
