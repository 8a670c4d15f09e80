"""What all n-gram speculators share: one `NgramText` per sequence, read on when it is asked for."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from .admissible import admissible
from .interface import Draft, DraftRequest, SavesState, SequenceStart, Speculator
from .ngram_estimates import LEVELS, Chances, as_int, n_common, refusing_damage
from .ngram_index import goes_on_from


class Guess(NamedTuple):
    tokens: list[int]
    chances: list[float]


NO_GUESS = Guess([], [])


class NgramText(ABC):
    """One text as a speculator knows it. Tokens are looked at once, when they are new."""

    basis: Any = None  # what the latest guess was made from, for `judge`; JSON can hold it
    _offered: list[int] | None = None

    @property
    @abstractmethod
    def tokens(self) -> list[int]:
        """What has been read."""

    @abstractmethod
    def extend(self, new: Sequence[int]) -> None:
        """Read more of the text."""

    @abstractmethod
    def guess(self, n_max: int) -> Guess:
        """What comes next, at most so many tokens."""

    @abstractmethod
    def judge(self, n_right: int, *, failed: bool) -> None:
        """Of the latest guess so many tokens were right; the next one was wrong if `failed`.
        Otherwise the text has not come to it."""

    @abstractmethod
    def save_learnt(self) -> Any:
        """What `judge` has made of it, as JSON can hold it."""

    @abstractmethod
    def load_learnt(self, saved: Any) -> None:
        """Raises ValueError, or any error of a value that is not what it should be."""

    @abstractmethod
    def check_basis(self, basis: Any, n_offered: int) -> None:
        """Raises likewise if no guess of so many tokens can have been made from it."""

    def close(self, *, is_finished: bool) -> None:
        """No more of it will come: it has ended, or is being read anew."""

    def catch_up(self, tokens: Sequence[int]) -> None:
        new = list(tokens[len(self.tokens) :])
        if new:
            self._judge(new)
            self.extend(new)

    def offer(self, tokens: list[int]) -> None:
        """The guess as far as it became a draft: to be compared with what will be written."""
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
        """What `save` returned. The text is known again already; it may have gone on since."""
        with refusing_damage():
            state = json.loads(blob)
            self.load_learnt(state["learnt"])
            offered, at = state["offered"], as_int(state["at"])
            if not offered:
                return
            if not 0 <= at <= len(self.tokens):
                raise ValueError
            self.check_basis(state["basis"], len(offered))
            self._offered, self.basis = [as_int(token) for token in offered], state["basis"]
            if at < len(self.tokens):
                self._judge(self.tokens[at:])

    def _judge(self, new: list[int]) -> None:
        if self._offered:
            n_right = n_common(self._offered, new)
            self.judge(n_right, failed=n_right < min(len(self._offered), len(new)))
            self._offered = None


class AgreeingText(NgramText):
    """Believes a guess by how far two places agree beyond the minimum: that is its `basis`."""

    chances: Chances

    def judge(self, n_right: int, *, failed: bool) -> None:
        self.chances.learn(self.basis, n_right, failed=failed)

    def save_learnt(self) -> Any:
        return self.chances.save()

    def load_learnt(self, saved: Any) -> None:
        self.chances.load(saved)

    def check_basis(self, basis: Any, n_offered: int) -> None:
        LEVELS.index(basis)


class NgramSpeculator(Speculator, SavesState):
    """Learns from the text itself, so it needs neither `observe` nor `settle`: a proposal is
    compared with the tokens that follow, even when it lost against another one."""

    def __init__(self, name: str, eog_ids: Set[int], longest: int) -> None:
        self.name, self.longest = name, longest
        self._eog_ids = eog_ids
        self._texts: dict[int, NgramText] = {}
        self._owners: dict[int, str] = {}

    @abstractmethod
    def open(self, owner: str) -> NgramText:
        """A text of which nothing is known yet."""

    def resume(self, owner: str, tokens: Sequence[int]) -> NgramText:
        """A text that begins with these tokens; the first of them may be known already."""
        return self.open(owner)

    def begin(self, opening: SequenceStart) -> None:
        self.end(opening.sequence)
        self._owners[opening.sequence] = opening.owner
        text = self._texts[opening.sequence] = self.resume(opening.owner, opening.tokens)
        text.catch_up(opening.tokens)

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def end(self, sequence: int) -> None:
        text = self._texts.pop(sequence, None)
        self._owners.pop(sequence, None)
        if text is not None:
            text.close(is_finished=True)

    def save(self, sequence: int) -> dict[str, bytes]:
        text = self._texts.get(sequence)
        blob = text.save() if text is not None else b""
        return {self.name: blob} if blob else {}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        if self.name in blobs:
            self._texts[sequence].load(blobs[self.name])

    def _caught_up(self, ask: DraftRequest) -> NgramText:
        text = self._texts.get(ask.sequence)
        if text is None or not goes_on_from(text.tokens, ask.tokens):
            text = self._reopen(ask, text)
        text.catch_up(ask.tokens)
        return text

    def _draft(self, ask: DraftRequest) -> Draft:
        text = self._caught_up(ask)
        guess = text.guess(ask.max_draft) if ask.max_draft > 0 else NO_GUESS
        draft = Draft()
        if guess.tokens:
            n = admissible(ask, guess.tokens, self._eog_ids)
            draft.tokens, draft.chances = guess.tokens[:n], guess.chances[:n]
            draft.sources = [self.name] * n
            text.offer(draft.tokens)
        return draft

    def _reopen(self, ask: DraftRequest, old: NgramText | None) -> NgramText:
        """The text shrank, or is another one: what was known of it is void."""
        if old is not None:
            old.close(is_finished=False)
        owner = self._owners.get(ask.sequence, "")
        text = self._texts[ask.sequence] = self.resume(owner, ask.tokens)
        return text
