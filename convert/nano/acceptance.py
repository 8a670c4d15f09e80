"""How many of a draft's tokens a model would have said itself, measured after the fact.

The text is greedy, so whatever is drafted the trunk's side of it is known: its tokens and its
hidden rows, from one pass. The head then drafts from each place where a draft would begin, with
the key-value rows that it would have there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core.backend.interface import Backend
from ...core.backend.layers import Floats
from ...core.backend.step import Piece, build_step
from ...core.models.base import Model
from ...core.models.drafters.mtp import H_NEXTN
from ...core.state.sizes import PAGE_LEN

MAX_ROWS = 512


@dataclass(frozen=True, slots=True)
class Acceptance:
    drafts: int
    accepted: tuple[int, ...]  # drafts of which token i and all before it were right

    def __add__(self, other: Acceptance) -> Acceptance:
        sums = (a + b for a, b in zip(self.accepted, other.accepted, strict=True))
        return Acceptance(self.drafts + other.drafts, tuple(sums))

    @property
    def first(self) -> float:
        return self.accepted[0] / self.drafts

    @property
    def length(self) -> float:
        """Tokens per round: those accepted and the one that the trunk adds."""
        return 1 + sum(self.accepted) / self.drafts


def measure(
    model: Model, backend: Backend, prompt: Sequence[int], written: Sequence[int], n_draft: int = 3
) -> Acceptance:
    tokens = [*prompt, *written]
    hidden = trunk_rows(model, backend, tokens)
    head = HeadRuns(model, backend, len(tokens) + n_draft)
    counts = [0] * n_draft
    drafts, last = 0, len(prompt)  # the last token that is certain: the prompt's reply has begun
    head.read(tokens[:last], np.concatenate([np.zeros_like(hidden[:1]), hidden[: last - 1]]), 0)
    while last + n_draft < len(tokens):
        draft = head.draft(tokens[last], hidden[last - 1], last, n_draft)
        right = _n_right(draft, tokens[last + 1 :])
        for i in range(right):
            counts[i] += 1
        drafts += 1
        head.read(tokens[last : last + right + 1], hidden[last - 1 : last + right], last)
        last += right + 1
    return Acceptance(drafts, tuple(counts))


def _n_right(draft: Sequence[int], truth: Sequence[int]) -> int:
    for i, token in enumerate(draft):
        if token != truth[i]:
            return i
    return len(draft)


def trunk_rows(model: Model, backend: Backend, tokens: Sequence[int]) -> Floats:
    """What the head continues from, (T, D)."""
    pages = range(-(-len(tokens) // PAGE_LEN))
    state = backend.new_state(
        model.state_shape, n_pages=len(pages), page_len=PAGE_LEN, n_slots=1, window=1
    )
    run = backend.compile(model.forward, state, max_rows=MAX_ROWS, taps=frozenset({H_NEXTN}))
    rows = []
    for first in range(0, len(tokens), MAX_ROWS):
        piece = Piece(
            tokens[first : first + MAX_ROWS], first, pages, n_pending_accepted=int(first > 0)
        )
        rows.append(run(build_step([piece])).taps[H_NEXTN].copy())
    return np.concatenate(rows)


class HeadRuns:
    """One MTP head over one text, from position `first` on; at 0 the hidden row is zero."""

    def __init__(self, model: Model, backend: Backend, n_tokens: int, first: int = 0) -> None:
        self.first = first
        self.pages = range(-(-n_tokens // PAGE_LEN))
        state = backend.new_state(
            model.state_shape, n_pages=len(self.pages), page_len=PAGE_LEN, n_slots=1, window=1
        )
        self.run = backend.compile(
            model.nextn[0].forward, state, max_rows=MAX_ROWS, taps=frozenset({H_NEXTN})
        )

    def read(self, tokens: Sequence[int], hidden: Floats, position: int) -> None:
        """Tokens that are certain, with the trunk's rows of the tokens before them."""
        for first in range(0, len(tokens), MAX_ROWS):
            part = slice(first, first + MAX_ROWS)
            self.step(tokens[part], hidden[part], position + first)

    def draft(self, token: int, hidden: Floats, position: int, n: int) -> list[int]:
        drafted: list[int] = []
        for i in range(n):
            best, hidden = self.step([token], hidden[None] if i == 0 else hidden, position + i)
            drafted.append(token := best)
        return drafted

    def step(self, tokens: Sequence[int], hidden: Floats, position: int) -> tuple[int, Floats]:
        piece = Piece(tokens, position - self.first, self.pages, first_position=position)
        out = self.run(build_step([piece], hidden))
        return int(out.logits[-1].argmax()), out.taps[H_NEXTN][-1:].copy()
