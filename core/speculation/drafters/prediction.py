"""prediction: drafts from a text that the request expects, such as a file before its edit.

OpenAI calls it predicted outputs. The expected text is followed token by token; where the
sequence differs from it, the newest tokens are looked up in it again.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

import numpy as np

from ..draft import Draft, DraftRequest
from ..interface import SequenceStart, Speculator
from ..request_spec import PREDICTION
from .admissible import admissible
from .ngram_chances import n_common

_MIN_MATCH: Final = 2  # newest tokens that a place has to match
_MAX_MATCH: Final = 8  # newest tokens that are compared
_MAX_PLACES: Final = 64  # that are compared
_FIRST_CHANCE: Final = 0.7  # of a draft token before any was verified
_N_FIRST: Final = 4.0  # tokens that the first chance counts for
_KEPT: Final = 0.9  # of the counts, per token


class ExpectedText:
    """The expected tokens, and where in them the sequence is."""

    def __init__(self, tokens: Sequence[int], n_prompt: int) -> None:
        self.tokens = list(tokens)
        self._n_prompt = self._n_read = n_prompt
        self._at = 0  # the expected token that comes next
        self._is_lost = False  # the sequence differs from what was expected
        self._right, self._seen = _FIRST_CHANCE * _N_FIRST, _N_FIRST
        self._ids = np.array(self.tokens, np.int64)

    def read(self, tokens: Sequence[int]) -> None:
        """Follow the sequence to its newest token."""
        for i in range(self._n_read, len(tokens)):
            if self._is_lost:
                break
            is_right = self._at < len(self.tokens) and self.tokens[self._at] == tokens[i]
            self._right = _KEPT * self._right + is_right
            self._seen = _KEPT * self._seen + 1
            self._at += 1
            self._is_lost = not is_right
        self._n_read = len(tokens)
        if self._is_lost:
            self._find(tokens)

    def rest(self, n: int) -> list[int]:
        """The next expected tokens, at most `n`."""
        return [] if self._is_lost else self.tokens[self._at : self._at + n]

    @property
    def chance(self) -> float:
        """The chance of a token if those before it are right."""
        return min(self._right / self._seen, 0.99)

    def _find(self, tokens: Sequence[int]) -> None:
        """Go to the place that most of the newest tokens match; of equals to the next one."""
        if len(tokens) - self._n_prompt < _MIN_MATCH:
            return
        pair = (self._ids[:-1] == tokens[-2]) & (self._ids[1:] == tokens[-1])
        ends = np.flatnonzero(pair) + _MIN_MATCH
        ends = ends[ends < len(self.tokens)]
        ahead = np.searchsorted(ends, self._at)
        ends = np.roll(ends, -ahead)[:_MAX_PLACES]  # those ahead come first, nearest first
        newest = list(tokens[max(self._n_prompt, len(tokens) - _MAX_MATCH) :])
        best = 0
        for end in ends.tolist():
            expected = self.tokens[max(0, end - _MAX_MATCH) : end]
            n = n_common(expected[::-1], newest[::-1])
            if n > best:
                best, self._at, self._is_lost = n, end, False


class PredictionDrafter(Speculator):
    name = PREDICTION

    def __init__(self, eog_ids: Set[int]) -> None:
        self._eog_ids = eog_ids
        self._expected: dict[int, ExpectedText] = {}

    def begin(self, start: SequenceStart) -> None:
        if start.spec.prediction:
            n_prompt = start.n_prompt or len(start.tokens)
            self._expected[start.sequence] = ExpectedText(start.spec.prediction, n_prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def end(self, sequence: int) -> None:
        self._expected.pop(sequence, None)

    def _draft(self, request: DraftRequest) -> Draft:
        expected = self._expected.get(request.sequence)
        if expected is None:
            return Draft()
        expected.read(request.tokens)
        tokens = expected.rest(min(request.max_draft, self.longest))
        n = admissible(request, tokens, self._eog_ids) if tokens else 0
        return Draft(tokens[:n], [PREDICTION] * n, chances=[expected.chance] * n)
