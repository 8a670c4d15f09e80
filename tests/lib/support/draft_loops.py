"""Models that draft, and random rounds of drafting for one to four texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from nextn.core.backend.draft_loop import HostDraftLoop
from nextn.core.backend.interface import (
    Backend,
    DraftLoop,
    DraftLoopPlan,
    Drafts,
    DraftSettings,
    State,
    StateRoom,
)
from nextn.core.backend.step import Ints, Step, StepPart, build_step, pending_accepted_after
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.models.model import Model
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

MAX_TEXTS, MAX_DRAFT, MAX_ROWS = 4, 6, 32
PAGE_LEN, PAGES_PER_TEXT, WINDOW = 16, 6, 9
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logit_bias=((3, 4.0), (7, -np.inf), (90, 2.5))),
    SamplingParams(seed=11),
    SamplingParams(seed=2**40 + 7, temperature=1.4, top_k=12, top_p=0.8, min_p=0.02),
    SamplingParams(seed=5, top_k=200, top_p=1.0, min_p=0.0, logit_bias=((5, 3.0), (400, -np.inf))),
]


@dataclass(frozen=True, eq=False)
class Drafter:
    """A model, or its MTP head, and how it is asked."""

    model: Model
    backend: Backend
    is_head: bool
    vocab_subset: Ints | None = None

    @property
    def n_vocab(self) -> int:
        return self.model.hparams.n_vocab

    @property
    def tap(self) -> str | None:
        return H_NEXTN if self.is_head else None

    @cached_property
    def forward(self) -> Any:
        if not self.is_head:
            return self.model.forward
        head = self.model.nextn[0]
        if self.vocab_subset is not None:
            head = head.shortened(self.backend, self.vocab_subset)
        return head.forward

    def new_state(self) -> State:
        return self.backend.new_state(
            self.model.state_shape,
            StateRoom(
                n_pages=MAX_TEXTS * PAGES_PER_TEXT,
                page_len=PAGE_LEN,
                n_slots=MAX_TEXTS,
                window=WINDOW,
            ),
        )

    def run(self, state: State, stops: Sequence[int] = ()) -> DraftLoop:
        return self.backend.compile_draft_loop(self.forward, state, self.plan(stops))

    def plan(self, stops: Sequence[int] = ()) -> DraftLoopPlan:
        return DraftLoopPlan(
            MAX_ROWS, MAX_DRAFT, self.n_vocab, self.tap, self.vocab_subset, frozenset(stops)
        )

    def host_run(self, state: State, stops: Sequence[int] = ()) -> DraftLoop:
        plan = self.plan(stops)
        run = self.backend.compile(self.forward, state, max_rows=MAX_ROWS, taps=plan.taps)
        return HostDraftLoop(run, plan, WINDOW)


@dataclass
class Text:
    slot: int
    sampler: DraftSampler
    pages: list[int]
    n_cells: int = 0
    n_pending_accepted: int = 0
    tokens: list[int] = field(default_factory=list)


class Texts:
    """What a caller keeps of some texts while they are drafted for."""

    def __init__(self, drafter: Drafter, rng: np.random.Generator, n: int) -> None:
        self.drafter, self.rng = drafter, rng
        self.texts = [
            Text(int(slot), random_sampler(rng, drafter.n_vocab, b), pages[b].tolist())
            for pages in [rng.permutation(MAX_TEXTS * PAGES_PER_TEXT).reshape(MAX_TEXTS, -1)]
            for b, slot in enumerate(rng.permutation(MAX_TEXTS)[:n])
        ]

    def round(self) -> tuple[Step, list[DraftSettings]]:
        """Rows to catch up on and lengths, as random as can be."""
        rng, pieces, asks = self.rng, [], []
        for text in self.texts:
            tokens = rng.integers(0, self.drafter.n_vocab, int(rng.integers(1, 6))).tolist()
            first = text.n_cells + int(self.drafter.is_head)
            pieces.append(
                StepPart(
                    tokens,
                    text.n_cells,
                    text.pages,
                    text.slot,
                    text.n_pending_accepted,
                    first,
                    n_out=1,
                )
            )
            length = int(rng.choice([0, 1, 2, 3, MAX_DRAFT]))
            p_min = float(rng.choice([0.0, 0.0, 0.01, 0.2]))
            inverse_temperature = float(rng.choice([1.0, 1.0, 0.4, 2.5]))
            asks.append(DraftSettings(text.sampler, length, p_min, inverse_temperature))
            text.n_pending_accepted = pending_accepted_after(
                text.n_pending_accepted, len(tokens), len(tokens), WINDOW
            )
            text.n_cells += len(tokens)
        step = build_step(pieces)
        if self.drafter.is_head:
            shape = (step.n_rows, self.drafter.model.hparams.n_embd)
            step = replace(step, hidden=rng.normal(0, 1, shape).astype(np.float32))
        return step, asks

    def forget_drafts(self, step: Step, drafts: Drafts) -> None:
        """A recurrent state has moved on with the rows that were drafted; the text does as well."""
        if not self.drafter.model.state_shape.recurrent or self.drafter.is_head:
            return
        for text, tokens in zip(self.texts, drafts.tokens, strict=True):
            for _ in tokens[:-1]:
                text.n_pending_accepted = pending_accepted_after(
                    text.n_pending_accepted, 1, 1, WINDOW
                )
                text.n_cells += 1


def random_sampler(rng: np.random.Generator, n_vocab: int, index: int) -> DraftSampler:
    params = PARAMS[int(rng.integers(len(PARAMS)))]
    return DraftSampler(Sampler(params, n_vocab=n_vocab, sequence=index))


def assert_alike(got: Drafts, want: Drafts, rtol: float = 2e-5) -> None:
    assert got.tokens == want.tokens
    if got.unsure and want.unsure:  # devices do not watch it
        assert got.unsure == want.unsure
    assert [len(chances) for chances in got.chances] == [len(tokens) for tokens in got.tokens]
    for ours, theirs in zip(got.chances, want.chances, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol)
