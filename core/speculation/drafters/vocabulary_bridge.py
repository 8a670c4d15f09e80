"""From the logits of a draft model to the token that it drafts.

The drafted token is the one that the target's own sampler, with its parameters, noise and state,
would pick from these logits: where both models agree, so do sampled tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from ...backend.interface import HostOutput
from ...backend.picking import UNSURE
from .translation import MAX_OPEN, NO_TOKEN, DraftedPiece, Translation, Translator

if TYPE_CHECKING:
    from ...backend.layers import Floats
    from ...sampling.draft_sampler import DraftSampler

_NOTHING, _COMMON, _OWN = range(3)  # a draft token: without text, in both vocabularies, in one
_STAND_IN: Final = 0  # for a token that the draft model does not have


class VocabularyBridge(ABC):
    """Maps the draft model's tokens to the target's and back."""

    n_unsure = 0  # tokens at the end of a sequence that later tokens may change, at most
    shares_ids = False  # token ids mean the same in both models

    def __init__(self, n_known: int) -> None:
        """`n_known`: tokens of the draft model that may be drafted, the first ones."""
        self._weights = np.empty(n_known, np.float32)

    @abstractmethod
    def new_translation(self) -> Translation | None:
        """Follows one sequence in the draft model's tokens; None where ids are shared."""

    def known(self, ids: Sequence[int]) -> list[int]:
        """The ids with a stand-in for each that the draft model does not have."""
        return list(ids)

    @abstractmethod
    def pick(self, picker: DraftSampler, output: HostOutput, row: int, position: int) -> int:
        """A token of the draft model, or NO_TOKEN, which ends the draft."""

    @abstractmethod
    def accept(self, picker: DraftSampler, token: int) -> None:
        """The token has become part of the draft."""

    @abstractmethod
    def back(self, tokens: list[int], chances: list[float]) -> tuple[list[int], list[float]]:
        """The draft in the target's tokens."""

    def chance(self, logits: Floats, token: int, inverse_temperature: float) -> float:
        """The draft model's own probability; `inverse_temperature`: one by the temperature."""
        logits = logits[: self._weights.size]
        weights = np.subtract(logits, logits.max(), out=self._weights)
        if inverse_temperature != 1:
            weights *= inverse_temperature
        np.exp(weights, out=weights)
        return float(weights[token] / weights.sum())


class _OwnRow:
    """Logits over the target's vocabulary, of which the draft model has only some tokens."""

    def __init__(self, n_target: int) -> None:
        self.logits = np.full(n_target, -np.inf, np.float32)
        self.output = HostOutput(self.logits[None], {})


class SharedTokens(VocabularyBridge):
    """Ids mean the same in both, as far as both have them. A distribution over one vocabulary is
    one over the other: tokens that only one of them has are impossible."""

    shares_ids = True

    def __init__(self, n_target: int, n_draft: int, eog_ids: frozenset[int]) -> None:
        super().__init__(min(n_target, n_draft))
        self._eog_ids, self._n_both, self._n_draft = eog_ids, min(n_target, n_draft), n_draft
        self._has_all = n_draft >= n_target
        self._row = None if n_target == n_draft else _OwnRow(n_target)

    def new_translation(self) -> None:
        return None

    def known(self, ids: Sequence[int]) -> list[int]:
        if self._has_all:
            return list(ids)
        return [token if token < self._n_draft else _STAND_IN for token in ids]

    def pick(self, picker: DraftSampler, output: HostOutput, row: int, position: int) -> int:
        if self._row is not None:
            self._row.logits[: self._n_both] = output.logits[row][: self._n_both]
            output, row = self._row.output, 0
        token = picker.pick(output, row, position)
        return NO_TOKEN if token == UNSURE or token in self._eog_ids else token

    def accept(self, picker: DraftSampler, token: int) -> None:
        picker.accept(token)

    def back(self, tokens: list[int], chances: list[float]) -> tuple[list[int], list[float]]:
        return tokens, chances


class TranslatedTokens(VocabularyBridge):
    """Each model has a vocabulary of its own; see `translation.py`.

    A draft is cut into the target's tokens once it is complete: each target token depends on what
    was drafted behind it, and none was drawn from a known distribution.
    """

    n_unsure = MAX_OPEN

    def __init__(self, translator: Translator, n_target: int, n_draft: int) -> None:
        super().__init__(n_draft)
        self._translator = translator
        pairs = translator.pairs
        self._ours = np.flatnonzero(pairs != NO_TOKEN)
        self._theirs = pairs[self._ours]
        self._to_ours = np.full(n_target, NO_TOKEN)
        self._to_ours[self._theirs] = self._ours
        self._row = _OwnRow(n_target)
        self._eog_ids = translator.draft.eog_ids
        self._kinds = bytearray([_NOTHING]) * n_draft
        for token, pair in enumerate(pairs.tolist()):
            if pair != NO_TOKEN or token in self._eog_ids:
                self._kinds[token] = _COMMON
            elif translator.piece(token, 1.0) is not None:
                self._kinds[token] = _OWN

    def new_translation(self) -> Translation:
        return Translation(self._translator)

    def pick(self, picker: DraftSampler, output: HostOutput, row: int, position: int) -> int:
        logits, sampler = output.logits[row], picker.sampler
        best = int(logits.argmax())
        kind = self._kinds[best]
        # Among tokens that the target has too, the one that its noise would pick. Where the best
        # token is not among them, neither the sampler nor a grammar can judge it.
        if kind == _NOTHING or (
            not sampler.is_greedy and (kind == _COMMON or sampler.grammar is not None)
        ):
            self._row.logits[self._theirs] = logits[self._ours]
            theirs = picker.pick(self._row.output, 0, position)
            best = int(self._to_ours[theirs])
        return NO_TOKEN if best in self._eog_ids else best

    def accept(self, picker: DraftSampler, token: int) -> None:
        theirs = int(self._translator.pairs[token])
        if theirs != NO_TOKEN:
            picker.accept(theirs)

    def back(self, tokens: list[int], chances: list[float]) -> tuple[list[int], list[float]]:
        pieces = [
            self._translator.piece(token, chance)
            for token, chance in zip(tokens, chances, strict=True)
        ]
        known: list[DraftedPiece] = [piece for piece in pieces if piece is not None]
        return self._translator.back(known)
