"""The acceptance of an MTP head's drafts, measured on a finished greedy text.

The trunk's tokens and hidden rows of the text come from one pass, as drafts do not change them. The
head then drafts from each place where a draft would begin, with the key-value rows that it would
have there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nextn.core.backend.interface import Backend, StateRoom
from nextn.core.backend.layers import Floats
from nextn.core.backend.step import StepPart, build_step
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.models.model import Model
from nextn.core.state.sizes import PAGE_LEN

MAX_ROWS = 512


@dataclass(frozen=True, slots=True)
class DraftAcceptance:
    drafts: int
    accepted: tuple[int, ...]  # number of drafts whose tokens up to place i are right

    def __add__(self, other: DraftAcceptance) -> DraftAcceptance:
        sums = (a + b for a, b in zip(self.accepted, other.accepted, strict=True))
        return DraftAcceptance(self.drafts + other.drafts, tuple(sums))

    @property
    def first(self) -> float:
        return self.accepted[0] / self.drafts

    @property
    def length(self) -> float:
        """Tokens per round: those accepted and the one that the trunk adds."""
        return 1 + sum(self.accepted) / self.drafts


def measure(
    model: Model, backend: Backend, prompt: Sequence[int], written: Sequence[int], n_draft: int = 3
) -> DraftAcceptance:
    tokens = [*prompt, *written]
    hidden = trunk_rows(model, backend, tokens)
    head = HeadRuns(model, backend, len(tokens) + n_draft)
    counts = [0] * n_draft
    drafts, last = 0, len(prompt)  # `last`: place of the last certain token
    head.read(tokens[:last], np.concatenate([np.zeros_like(hidden[:1]), hidden[: last - 1]]), 0)
    while last + n_draft < len(tokens):
        draft = head.draft(tokens[last], hidden[last - 1], last, n_draft)
        truth = tokens[last + 1 :]
        right = next((i for i, token in enumerate(draft) if token != truth[i]), n_draft)
        counts = [n + (i < right) for i, n in enumerate(counts)]
        drafts += 1
        head.read(tokens[last : last + right + 1], hidden[last - 1 : last + right], last)
        last += right + 1
    return DraftAcceptance(drafts, tuple(counts))


def trunk_rows(model: Model, backend: Backend, tokens: Sequence[int]) -> Floats:
    """The hidden rows that the head continues from, (T, D)."""
    pages = range(-(-len(tokens) // PAGE_LEN))
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=len(pages), page_len=PAGE_LEN, n_slots=1, window=1)
    )
    run = backend.compile(model.forward, state, max_rows=MAX_ROWS, taps=frozenset({H_NEXTN}))
    rows = []
    for first in range(0, len(tokens), MAX_ROWS):
        piece = StepPart(
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
            model.state_shape,
            StateRoom(n_pages=len(self.pages), page_len=PAGE_LEN, n_slots=1, window=1),
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
        piece = StepPart(tokens, position - self.first, self.pages, first_position=position)
        out = self.run(build_step([piece], hidden))
        return int(out.logits[-1].argmax()), out.taps[H_NEXTN][-1:].copy()
