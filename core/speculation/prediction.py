"""prediction: drafts from a text that the request expects, such as a file before its edit.

OpenAI calls it predicted outputs. The expected text is followed token by token; where the written
text leaves it, the newest tokens are looked up in it again.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

import numpy as np

from .admissible import admissible
from .interface import Draft, DraftRequest, SequenceStart, Speculator
from .per_text import PREDICTION

_SHORTEST: Final = 2  # tokens that have to match where the text is looked up
_LONGEST: Final = 8  # of them that are looked at
_PLACES: Final = 64  # where they are compared
_FIRST_CHANCE: Final = 0.7  # of a draft, before anything is known of how like the texts are
_FORGET: Final = 0.9  # of how often its tokens were right, per token


class ExpectedText:
    def __init__(self, tokens: Sequence[int], n_prompt: int) -> None:
        self.tokens = list(tokens)
        self._n_prompt = self._n_read = n_prompt
        self._at = 0  # its token that comes next, if the text goes on as expected
        self._is_lost = False
        self._right, self._seen = _FIRST_CHANCE * 4, 4.0
        self._ids = np.array(self.tokens, np.int64)

    def read(self, text: Sequence[int]) -> None:
        """What was written since."""
        for i in range(self._n_read, len(text)):
            if self._is_lost:
                break
            is_right = self._at < len(self.tokens) and self.tokens[self._at] == text[i]
            self._right = _FORGET * self._right + is_right
            self._seen = _FORGET * self._seen + 1
            self._at += 1
            self._is_lost = not is_right
        self._n_read = len(text)
        if self._is_lost:
            self._find(text)

    def rest(self, n: int) -> list[int]:
        return [] if self._is_lost else self.tokens[self._at : self._at + n]

    @property
    def chance(self) -> float:
        """That a token is right if those before it were."""
        return min(self._right / self._seen, 0.99)

    def _find(self, text: Sequence[int]) -> None:
        """The place where most of the newest tokens are found, the next one if several are."""
        if len(text) - self._n_prompt < _SHORTEST:
            return
        pair = (self._ids[:-1] == text[-2]) & (self._ids[1:] == text[-1])
        ends = np.flatnonzero(pair) + _SHORTEST
        ends = ends[ends < len(self.tokens)]
        ahead = np.searchsorted(ends, self._at)
        ends = np.roll(ends, -ahead)[:_PLACES]  # those ahead come first, nearest first
        newest = list(text[max(self._n_prompt, len(text) - _LONGEST) :])
        best = 0
        for end in ends.tolist():
            n = _n_common_end(self.tokens[max(0, end - _LONGEST) : end], newest)
            if n > best:
                best, self._at, self._is_lost = n, end, False


class Prediction(Speculator):
    name = PREDICTION

    def __init__(self, eog_ids: Set[int]) -> None:
        self._eog_ids = eog_ids
        self._texts: dict[int, ExpectedText] = {}

    def begin(self, opening: SequenceStart) -> None:
        if opening.spec.prediction:
            n_prompt = opening.n_prompt or len(opening.tokens)
            expected = ExpectedText(opening.spec.prediction, n_prompt)
            self._texts[opening.sequence] = expected

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def end(self, sequence: int) -> None:
        self._texts.pop(sequence, None)

    def _draft(self, ask: DraftRequest) -> Draft:
        text = self._texts.get(ask.sequence)
        if text is None:
            return Draft()
        text.read(ask.tokens)
        tokens = text.rest(min(ask.max_draft, self.longest))
        if tokens:
            tokens = tokens[: admissible(ask, tokens, self._eog_ids)]
        n = len(tokens)
        return Draft(tokens, [PREDICTION] * n, chances=[text.chance] * n)


def _n_common_end(a: list[int], b: list[int]) -> int:
    n = 0
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if x != y:
            break
        n += 1
    return n
