"""What a generation returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..generation import Stats


class Piece(NamedTuple):
    """One token of a text. The last piece, and no other, has a stop reason."""

    text: str  # characters that are certain now; "" while a character or stop string may follow
    token: int | None  # None: the text ended without one
    logprob: float | None = None  # natural logarithm, with `logprobs`
    top_logprobs: tuple[tuple[int, float], ...] = ()
    source: str = "target"  # the drafter of the token
    stop_reason: str | None = None  # eos, limit, context, stop


@dataclass(frozen=True, slots=True)
class Result:
    """A text that has ended."""

    text: str
    tokens: Sequence[int]
    stop_reason: str  # eos, limit, context, stop
    seed: int  # the same seed, prompt and options give the same text
    stop_string: str | None = None
    pieces: Sequence[Piece] = field(default=(), repr=False)  # of each token, with `logprobs`
    stats: Stats = field(default_factory=Stats, repr=False)

    def __str__(self) -> str:
        return self.text
