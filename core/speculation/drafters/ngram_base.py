"""What all n-gram drafters share: an `NgramSequence` for each sequence."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from ...errors import FileFormatError
from ..draft import Draft, DraftRequest
from ..interface import SavesState, SequenceStart, Speculator
from .admissible import admissible
from .ngram_chances import as_int, n_common
from .ngram_index import continues


class NgramGuess(NamedTuple):
    tokens: list[int]
    chances: list[float]


NO_GUESS = NgramGuess([], [])


class NgramSequence(ABC):
    """The state of an n-gram drafter for one sequence. Each token is read once, when it is new."""

    basis: Any = None  # of the latest guess: what `learn` needs of it, as JSON can hold it

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.tokens: list[int] = []  # all that were read
        self._offered: list[int] | None = None  # the latest draft, until the sequence goes on

    @abstractmethod
    def extend(self, new: Sequence[int]) -> None:
        """Read the tokens that follow."""

    @abstractmethod
    def guess(self, n_max: int) -> NgramGuess:
        """The tokens that follow, at most `n_max`, and the chance of each."""

    @abstractmethod
    def learn(self, n_right: int, *, failed: bool) -> None:
        """`n_right` tokens of the latest guess were right; the next one was wrong if `failed`."""

    @abstractmethod
    def save_learnt(self) -> Any:
        """The result of `learn` so far, as JSON can hold it."""

    @abstractmethod
    def load_learnt(self, saved: Any) -> None:
        """Take over what `save_learnt` returned. Any error means that it is damaged."""

    @abstractmethod
    def check_basis(self, basis: Any, n_offered: int) -> None:
        """Any error means that no guess of so many tokens can have this basis."""

    def catch_up(self, tokens: Sequence[int]) -> None:
        new = list(tokens[len(self.tokens) :])
        if new:
            self._compare(new)
            self.extend(new)

    def offer(self, tokens: list[int]) -> None:
        """The part of the guess that became a draft, to be compared with the tokens that follow."""
        self._offered = tokens.copy()

    def save(self) -> bytes:
        state = {
            "learnt": self.save_learnt(),
            "offered": self._offered,
            "at": len(self.tokens),
            "basis": self.basis,
        }
        return json.dumps(state).encode()

    def load(self, blob: bytes) -> None:
        """Take over what `save` returned. The sequence is known again, and may be longer."""
        try:
            self._load(json.loads(blob))
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
            raise FileFormatError("the saved sequence holds damaged n-gram statistics") from None

    def _load(self, state: Any) -> None:
        self.load_learnt(state["learnt"])
        offered, at = state["offered"], as_int(state["at"])
        if not offered:
            return
        if not 0 <= at <= len(self.tokens):
            raise ValueError
        self.check_basis(state["basis"], len(offered))
        self._offered, self.basis = [as_int(token) for token in offered], state["basis"]
        if at < len(self.tokens):
            self._compare(self.tokens[at:])

    def _compare(self, new: list[int]) -> None:
        if self._offered:
            n_right = n_common(self._offered, new)
            self.learn(n_right, failed=n_right < min(len(self._offered), len(new)))
            self._offered = None


class NgramDrafter(Speculator, SavesState):
    """Learns from the tokens alone, so that it needs neither `observe` nor `settle`."""

    def __init__(self, name: str, eog_ids: Set[int], longest: int) -> None:
        self.name, self.longest = name, longest
        self._eog_ids = eog_ids
        self._sequences: dict[int, NgramSequence] = {}
        self._texts: dict[int, Sequence[int]] = {}  # of the sequences, as they grow

    @abstractmethod
    def open(self, owner: str, tokens: Sequence[int]) -> NgramSequence:
        """For a sequence that begins with `tokens`; the first of them may be known already."""

    def put_away(self, known: NgramSequence, *, is_finished: bool) -> None:
        """Called when a sequence has finished, or is read anew."""

    def begin(self, start: SequenceStart) -> None:
        self.end(start.sequence)
        known = self._sequences[start.sequence] = self.open(start.owner, start.tokens)
        known.catch_up(start.tokens)
        self._texts[start.sequence] = start.tokens

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def end(self, sequence: int) -> None:
        known, text = self._sequences.pop(sequence, None), self._texts.pop(sequence, ())
        if known is not None:
            if continues(known.tokens, text):  # with what was written since the last draft
                known.catch_up(text)
            self.put_away(known, is_finished=True)

    def save(self, sequence: int) -> dict[str, bytes]:
        known = self._sequences.get(sequence)
        return {} if known is None else {self.name: known.save()}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        if self.name in blobs:
            self._sequences[sequence].load(blobs[self.name])

    def _draft(self, request: DraftRequest) -> Draft:
        known = self._caught_up(request)
        guess = known.guess(request.max_draft) if request.max_draft > 0 else NO_GUESS
        if not guess.tokens:
            return Draft()
        n = admissible(request, guess.tokens, self._eog_ids)
        draft = Draft(guess.tokens[:n], [self.name] * n, chances=guess.chances[:n])
        known.offer(draft.tokens)
        return draft

    def _caught_up(self, request: DraftRequest) -> NgramSequence:
        """What is known of the sequence, up to its newest token. A sequence that shrank, or became
        another one, is read anew."""
        known = self._sequences.get(request.sequence)
        if known is None or not continues(known.tokens, request.tokens):
            if known is not None:
                self.put_away(known, is_finished=False)
            owner = "" if known is None else known.owner
            known = self._sequences[request.sequence] = self.open(owner, request.tokens)
        known.catch_up(request.tokens)
        return known
