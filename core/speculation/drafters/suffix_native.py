"""The native functions behind `suffix`, as functions of arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...backend.cpu.kernels import suffix_look_up as look_up_kernel
from ...backend.cpu.kernels import suffix_order
from ...backend.cpu.kernels.suffix_look_up import TEXT_WORDS
from ...backend.cpu.machine_code import Kernels
from ...backend.cpu.simd import best_set

Words = NDArray[np.uint32]

MARK: Final = suffix_order.MARK
DEPTH: Final = suffix_order.DEPTH
MAX_TOKENS: Final = look_up_kernel.MAX_TOKENS
_WORD: Final = ctypes.c_int64


class Address(NamedTuple):
    """Where words and their order lie, for a look-up."""

    words: int
    n_words: int
    order: int
    n: int


class Found(NamedTuple):
    n_matched: int  # words; 0: no occurrence
    where: int  # which of the texts
    n_places: int  # occurrences that have a vote
    tokens: list[int]
    votes: list[int]  # for each token
    all_votes: list[int]  # for it and for others in its place


class NativeSuffixes:
    """Short calls hold the interpreter's lock; sorting and merging give it away."""

    def __init__(self) -> None:
        wanted = {
            "suffix_sort": (suffix_order.write_sort, suffix_order.SORT),
            "suffix_merge": (suffix_order.write_merge, suffix_order.MERGE),
            "suffix_insert": (suffix_order.write_insert, suffix_order.INSERT),
            "suffix_look_up": (look_up_kernel.write_look_up, look_up_kernel.LOOK_UP),
        }
        self._kernels = Kernels(best_set())  # it owns the code
        at = self._kernels.get(
            {name: write for name, (write, _) in wanted.items()},
            kinds={name: kind for name, (_, kind) in wanted.items()},
        )
        self.sort: Any = ctypes.CFUNCTYPE(None, *[_WORD] * 4)(at["suffix_sort"])
        self.merge: Any = ctypes.CFUNCTYPE(None, *[_WORD] * 9)(at["suffix_merge"])
        self.insert: Any = ctypes.PYFUNCTYPE(None, *[_WORD] * 5)(at["suffix_insert"])
        self.look_up: Any = ctypes.PYFUNCTYPE(None, *[_WORD] * 8)(at["suffix_look_up"])


@cache
def native() -> NativeSuffixes:
    return NativeSuffixes()


def sort_places(words: Words, places: Words) -> Words:
    """The places, which ascend, in the order of their contexts."""
    order = places.copy()
    room = np.empty_like(order)
    native().sort(words.ctypes.data, order.ctypes.data, room.ctypes.data, len(order))
    return order


class LookUp:
    """Look-ups with room of their own for what goes in and comes out."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab, self._function = n_vocab, native().look_up
        self._result = np.zeros(look_up_kernel.RESULT_WORDS, np.int64)
        self._result_at = self._result.ctypes.data
        self._texts = np.zeros((0, TEXT_WORDS), np.int64)
        self._texts_at = 0

    def find(self, own: Address, texts: Sequence[Address], least: int, n_max: int) -> Found:
        """The longest suffix of the own text, of at least so many words, that occurs in the texts,
        and what follows it. The first of the texts with the longest match counts."""
        n = len(texts)
        if n > len(self._texts):
            self._texts = np.zeros((2 * n, TEXT_WORDS), np.int64)
            self._texts_at = self._texts.ctypes.data
        self._texts[:n] = texts
        self._function(
            own.words, own.n_words, self._texts_at, n, least, n_max, self._n_vocab, self._result_at
        )
        first = look_up_kernel.FIRST_TOKEN
        n_matched, where, n_places, n_tokens = self._result[:first].tolist()
        rows: list[int] = self._result[first : first + 3 * n_tokens].tolist()
        return Found(n_matched, where, n_places, rows[::3], rows[1::3], rows[2::3])
