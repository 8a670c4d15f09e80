"""SentencePiece vocabularies: merge the neighbours that make the best-scored token.

Not left to `tokenizers`: its merges have one rank per pair, here the rank belongs to the result,
however it is cut, and equal scores go to the leftmost place.
"""

from __future__ import annotations

import re
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FileFormatError
from .algorithm import Algorithm
from .vocabulary import PREFIX, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MARK = "\u2581"
_CACHED_WORDS = 1 << 16
_CACHED_CHARS = 32


class SentencePiece(Algorithm):
    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: NDArray[Any],
        unknown_id: int | None,
        adds_space: bool,
    ) -> None:
        self.adds_space = adds_space
        self._index = vocabulary.index
        self._ranks = _ranks(vocabulary.tokens, scores)
        self._unknown = [] if unknown_id is None else [unknown_id]
        self._word_ends = _word_ends(vocabulary.tokens)
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str, after_special: bool) -> list[int]:
        if self.adds_space and after_special:
            text = " " + text
        ids: list[int] = []
        for word in self._word_ends.split(text.replace(" ", _MARK)):
            ids += self._encode_word(word)
        return ids

    def spell(self, token: str) -> bytes:
        return token.replace(_MARK, " ").encode()

    def _encode_word(self, word: str) -> list[int]:
        known = self._words.get(word)
        if known is not None:
            return known
        ids: list[int] = []
        for piece in _merge(word, self._ranks):
            token_id = self._index.get(piece)
            ids += self._bytes_of(piece) if token_id is None else (token_id,)
        if len(word) <= _CACHED_CHARS:
            if len(self._words) >= _CACHED_WORDS:
                self._words.clear()
            self._words[word] = ids
        return ids

    def _bytes_of(self, piece: str) -> list[int]:
        ids = [self._index.get(f"<0x{byte:02X}>") for byte in piece.encode()]
        known = [token_id for token_id in ids if token_id is not None]
        return known if len(known) == len(ids) else self._unknown


def _merge(word: str, ranks: dict[str, int]) -> list[str]:
    """Symbol i is word[i : after[i]]; after[i] is 0 once i was merged into its left neighbour."""
    n = len(word)
    after = list(range(1, n + 1))
    before = list(range(-1, n))
    find = ranks.get
    # One integer per candidate, rank first and then place, compares faster than a tuple.
    pairs = [(find(word[i : i + 2]), i) for i in range(n - 1)]
    heap = [rank * n + i for rank, i in pairs if rank is not None]
    heapify(heap)
    while heap:
        rank, left = divmod(heappop(heap), n)
        right = after[left]
        if not right or right == n:
            continue
        end = after[right]
        if find(word[left:end]) != rank:
            continue  # one of the two has grown since
        after[left] = end
        after[right] = 0
        if end < n:
            before[end] = left
            rank_right = find(word[left : after[end]])
            if rank_right is not None:
                heappush(heap, rank_right * n + left)
        start = before[left]
        if start >= 0:
            rank_left = find(word[start:end])
            if rank_left is not None:
                heappush(heap, rank_left * n + start)
    starts = [i for i in range(n) if after[i]]
    return [word[i : after[i]] for i in starts]


def _ranks(tokens: list[str], scores: NDArray[Any]) -> dict[str, int]:
    """0 for the best score; equal scores have equal ranks."""
    values = scores.astype(np.float32)
    if np.isnan(values).any():
        raise FileFormatError(f"{PREFIX}scores: not a number")
    _, ranks = np.unique(-values, return_inverse=True)
    return dict(zip(tokens, ranks.tolist(), strict=True))


def _word_ends(tokens: list[str]) -> re.Pattern[str]:
    """Where text may be cut with no merge lost: before a mark, behind a character that no token
    has before a mark. Exact, and it makes words short and their ids worth keeping."""
    inside = {_MARK}
    for token in tokens:
        if _MARK in token:
            inside.update(left for left, right in pairwise(token) if right == _MARK)
    return re.compile(f"(?<=[^{re.escape(''.join(sorted(inside)))}])(?={_MARK})")
