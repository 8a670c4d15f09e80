"""From the logits of a draft model to the token that it drafts.

That is the one which the target's own sampler, with its parameters, noise and state, would pick
from them: where both models think alike they then say the same, sampled or not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from .translation import MAX_OPEN, NO_TOKEN, Piece, Translation, Translator

if TYPE_CHECKING:
    from ..backend.interface import HostOutput
    from ..backend.layers import Floats
    from .interface import Ask

_NOTHING, _COMMON, _OWN = range(3)  # what a token of the draft model says to the target
_GREEDY: Final = 1.0  # the temperature at which a greedy draft's chances are told


class Choice:
    """The sampler of one draft, and where it is."""

    __slots__ = ("_history", "_is_stateless", "position", "sampler", "sharpness")

    def __init__(self, ask: Ask) -> None:
        sampler = ask.sampler
        self._is_stateless = sampler.is_stateless
        self.sampler = sampler if self._is_stateless else sampler.copy()
        self.position = len(ask.tokens)
        # Only a sampler that reads it needs one of its own, which grows with the draft.
        self._history = list(ask.tokens) if sampler.reads_history else None
        self.sharpness = 1 / (sampler.params.temperature or _GREEDY)

    @property
    def history(self) -> Sequence[int]:
        return self._history or ()

    def accept(self, token: int) -> None:
        """`token`, the target's, has become part of the draft."""
        self.position += 1
        if not self._is_stateless:
            self.sampler.accept(token)
            if self._history is not None:
                self._history.append(token)


class Language(ABC):
    """How the draft model's tokens and the target's belong together."""

    n_unsure = 0  # tokens at most, at the end of a text, that may become others as it grows

    def __init__(self, n_draft: int) -> None:
        self._weights = np.empty(n_draft, np.float32)

    @abstractmethod
    def new_text(self) -> Translation | None:
        """What follows a text in the draft model's tokens; None if the target's do."""

    @abstractmethod
    def pick(self, choice: Choice, output: HostOutput, row: int) -> int:
        """A token of the draft model, or NO_TOKEN, which ends the draft."""

    @abstractmethod
    def accept(self, choice: Choice, token: int) -> None:
        """The token has become part of the draft."""

    @abstractmethod
    def back(self, tokens: list[int], chances: list[float]) -> tuple[list[int], list[float]]:
        """The draft in the target's tokens."""

    def chance(self, choice: Choice, logits: Floats, token: int) -> float:
        """The draft model's own probability, at the temperature that is asked for."""
        weights = np.subtract(logits, logits.max(), out=self._weights)
        if choice.sharpness != 1:
            weights *= choice.sharpness
        np.exp(weights, out=weights)
        return float(weights[token] / weights.sum())


class SharedTokens(Language):
    """Ids mean the same in both, as far as both have them."""

    def __init__(self, n_target: int, n_draft: int, eog_ids: frozenset[int]) -> None:
        super().__init__(n_draft)
        self._eog_ids, self._n_both = eog_ids, min(n_target, n_draft)
        self._row = None
        if n_target != n_draft:  # what the draft model does not know is impossible
            self._row = np.full(n_target, -np.inf, np.float32)

    def new_text(self) -> None:
        return None

    def pick(self, choice: Choice, output: HostOutput, row: int) -> int:
        if self._row is None:
            token = choice.sampler.pick_row(output, row, choice.history, choice.position)
        else:
            n = self._n_both
            self._row[:n] = output.logits[row][:n]
            token = choice.sampler.pick(self._row, choice.history, choice.position)
        return NO_TOKEN if token in self._eog_ids else token

    def accept(self, choice: Choice, token: int) -> None:
        choice.accept(token)

    def back(self, tokens: list[int], chances: list[float]) -> tuple[list[int], list[float]]:
        return tokens, chances


class TranslatedTokens(Language):
    """Each model has a vocabulary of its own; see `translation.py`."""

    n_unsure = MAX_OPEN

    def __init__(self, translator: Translator, n_target: int, n_draft: int) -> None:
        super().__init__(n_draft)
        self._translator = translator
        pairs = translator.pairs
        self._ours = np.flatnonzero(pairs != NO_TOKEN)
        self._theirs = pairs[self._ours]
        self._to_ours = np.full(n_target, NO_TOKEN)
        self._to_ours[self._theirs] = self._ours
        self._row = np.full(n_target, -np.inf, np.float32)
        self._eog_ids = translator.draft.eog_ids
        self._kinds = bytearray([_NOTHING]) * n_draft
        for token, pair in enumerate(pairs.tolist()):
            if pair != NO_TOKEN or token in self._eog_ids:
                self._kinds[token] = _COMMON
            elif translator.piece(token, 1.0) is not None:
                self._kinds[token] = _OWN

    def new_text(self) -> Translation:
        return Translation(self._translator)

    def pick(self, choice: Choice, output: HostOutput, row: int) -> int:
        logits, sampler = output.logits[row], choice.sampler
        best = int(logits.argmax())
        kind = self._kinds[best]
        # Of tokens that the target has too, the one that its noise would pick. Where another one is
        # the best, the sampler cannot say anything about it, and a grammar would have to.
        if kind == _NOTHING or (
            not sampler.is_greedy and (kind == _COMMON or sampler.grammar is not None)
        ):
            self._row[self._theirs] = logits[self._ours]
            theirs = sampler.pick(self._row, choice.history, choice.position)
            best = int(self._to_ours[theirs])
        return NO_TOKEN if best in self._eog_ids else best

    def accept(self, choice: Choice, token: int) -> None:
        theirs = int(self._translator.pairs[token])
        if theirs == NO_TOKEN:
            choice.position += 1
        else:
            choice.accept(theirs)

    def back(self, tokens: list[int], chances: list[float]) -> tuple[list[int], list[float]]:
        pieces = [
            self._translator.piece(token, chance)
            for token, chance in zip(tokens, chances, strict=True)
        ]
        known: list[Piece] = [piece for piece in pieces if piece is not None]
        return self._translator.back(known)
