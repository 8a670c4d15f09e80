"""prediction: drafts from a text that the request expects, such as a file before its edit.

OpenAI calls it predicted outputs. The expected text is followed token by token; where the written
text leaves it, the newest tokens are looked up in it again.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from .admissible import admissible
from .interface import Ask, Draft, Opening, Speculator
from .per_text import PREDICTION

_MATCHES: Final = (8, 4, 2)  # tokens that have to match where the text is looked up, longest first
_FIRST_CHANCE: Final = 0.7  # of a draft, before anything is known of how like the texts are
_FORGET: Final = 0.9  # of how often its tokens were right, per token


class ExpectedText:
    def __init__(self, tokens: Sequence[int], n_prompt: int) -> None:
        self.tokens = list(tokens)
        self._n_prompt = self._n_read = n_prompt
        self._at = 0  # its token that comes next, if the text goes on as expected
        self._is_lost = False
        self._right, self._seen = _FIRST_CHANCE * 4, 4.0
        self._places = [_index(self.tokens, n) for n in _MATCHES]

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
        """The nearest place behind the last one where the newest tokens are found."""
        n_written = len(text) - self._n_prompt
        for n, places in zip(_MATCHES, self._places, strict=True):
            found = places.get(tuple(text[-n:])) if n <= n_written else None
            if found:
                self._at = next((at for at in found if at >= self._at), found[-1])
                self._is_lost = False
                return


class Prediction(Speculator):
    name = PREDICTION

    def __init__(self, eog_ids: Set[int]) -> None:
        self._eog_ids = eog_ids
        self._texts: dict[int, ExpectedText] = {}
        self.is_wanted = False

    def begin(self, opening: Opening) -> None:
        if opening.spec.prediction:
            n_prompt = opening.n_prompt or len(opening.tokens)
            expected = ExpectedText(opening.spec.prediction, n_prompt)
            self._texts[opening.sequence] = expected
        self.is_wanted = bool(self._texts)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def end(self, sequence: int) -> None:
        self._texts.pop(sequence, None)
        self.is_wanted = bool(self._texts)

    def _draft(self, ask: Ask) -> Draft:
        text = self._texts.get(ask.sequence)
        if text is None:
            return Draft()
        text.read(ask.tokens)
        tokens = text.rest(min(ask.max_draft, self.longest))
        if tokens:
            tokens = tokens[: admissible(ask, tokens, self._eog_ids)]
        n = len(tokens)
        return Draft(tokens, [PREDICTION] * n, chances=[text.chance] * n)


def _index(tokens: list[int], n: int) -> dict[tuple[int, ...], list[int]]:
    """Where each run of n tokens ends, in ascending order."""
    places: dict[tuple[int, ...], list[int]] = {}
    for end in range(n, len(tokens)):
        places.setdefault(tuple(tokens[end - n : end]), []).append(end)
    return places
