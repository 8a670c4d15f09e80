"""Rounds of a text, from what our server says of every token: who drafted it, and what else was.

Its counts of drafts are those of the moment in which an event is written, which may be later than
the round that the event is about; what a token says of itself is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..generation import TARGET
from .record import Chunk


class StreamRound(NamedTuple):
    n: int  # tokens
    drafted: int
    accepted: int
    ms: float  # when it came


@dataclass(slots=True)
class TokenSources:
    """Per token, in their order."""

    tokens: list[tuple[str, int, float]] = field(default_factory=list)

    def add(self, told: Sequence[tuple[str, int]], ms: float) -> None:
        """Of each: its source, and how many were drafted for its place and those behind it."""
        self.tokens += [(source, n_rejected, ms) for source, n_rejected in told]

    def rounds(self) -> list[StreamRound]:
        """The first is the one that finished the prompt."""
        found, first = list[StreamRound](), 0
        for i, (source, n_rejected, _) in enumerate(self.tokens):
            is_last = i + 1 == len(self.tokens)
            if source == TARGET or is_last:
                accepted = i - first + (source != TARGET)
                ms = self.tokens[first][2]
                found.append(StreamRound(i + 1 - first, accepted + n_rejected, accepted, ms))
                first = i + 1
        return found


def chunks(rounds: Sequence[StreamRound]) -> list[Chunk]:
    return [Chunk(each.ms, each.n) for each in rounds]


def by_place(rounds: Sequence[tuple[int, int]]) -> tuple[int, list[int], list[int]]:
    """Of (drafted, accepted): how many had a draft, tokens drafted and accepted by place."""
    drafts = [(n, k) for n, k in rounds if n]
    places = range(max((n for n, _ in drafts), default=0))
    return (
        len(drafts),
        [sum(n > i for n, _ in drafts) for i in places],
        [sum(k > i for _, k in drafts) for i in places],
    )
