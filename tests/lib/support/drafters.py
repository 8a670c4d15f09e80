"""Speculators for tests of what is around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nextn.core.backend.layers import Floats
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.interface import SequenceStart, Speculator, StepResult

Guess = Callable[[list[int], int], list[int]]


class Toy(Speculator):
    """Proposes what a function of the text and the longest draft says; remembers what it hears."""

    def __init__(self, guess: Guess, *sources: str, taps: frozenset[str] = frozenset()) -> None:
        """`sources` in turn, for the tokens of a draft."""
        self.guess, self.sources, self.taps = guess, sources or ("toy",), taps
        self.name = self.sources[0]
        self.asked: list[int] = []  # longest drafts
        self.begun: list[list[int]] = []
        self.seen: list[tuple[list[int], int]] = []  # rows, and how many of them hold
        self.tapped: list[dict[str, Floats]] = []
        self.settled: list[tuple[int, bool]] = []
        self.n_ended = self.n_closed = 0

    def begin(self, opening: SequenceStart) -> None:
        self.begun.append(list(opening.tokens))

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def observe(self, seen: StepResult) -> None:
        self.seen.append((seen.step.tokens.tolist(), seen.n_valid[0]))
        self.tapped.append(
            {name: rows[: seen.n_valid[0]].copy() for name, rows in seen.output.taps.items()}
        )

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        self.settled.append((n_accepted, mine))

    def end(self, sequence: int) -> None:
        self.n_ended += 1

    def close(self) -> None:
        self.n_closed += 1

    def _draft(self, ask: DraftRequest) -> Draft:
        self.asked.append(ask.max_draft)
        tokens = self.guess(list(ask.tokens), ask.max_draft)
        sources = [self.sources[i % len(self.sources)] for i in range(len(tokens))]
        return Draft(tokens, sources, dict.fromkeys(self.sources, 0.5))


def repeats(text: list[int], longest: int, n: int = 1) -> list[int]:
    """What followed the last `n` tokens when they came before."""
    for end in range(len(text) - 1, n - 1, -1):
        if text[end - n : end] == text[-n:]:
            return text[end : end + longest]
    return []


def knows(truth: Sequence[int], wrong: int | None = None, n_vocab: int = 512) -> Guess:
    """The text as it will be, but for one place of each draft."""

    def guess(text: list[int], longest: int) -> list[int]:
        rest = list(truth[len(text) : len(text) + longest])
        if wrong is not None and wrong < len(rest):
            rest[wrong] = (rest[wrong] + 1) % n_vocab
        return rest

    return guess
