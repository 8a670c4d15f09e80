"""Texts written with and without drafts, for tests that compare them event by event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nextn.core.generation import TARGET, Event, GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.draft import Draft, DraftRequest

from .scripted import (
    END,
    GREEDY,
    N_VOCAB,
    PROMPT,
    Oracle,
    assert_nothing_is_held,
    drain,
    make_engine,
)

Spoil = Callable[[int, int], int]

SAMPLED = SamplingParams(temperature=0.7, seed=11)
GRAMMAR = 'root ::= [a-m]+ "z" [n-z]* '
HOW: dict[str, GenerateParams] = {
    "greedy": GenerateParams(GREEDY, max_tokens=25, logprobs=2),
    "sampled": GenerateParams(SAMPLED, max_tokens=25, logprobs=0),
    "penalties": GenerateParams(
        SamplingParams(temperature=0.7, repeat_penalty=1.8, presence_penalty=1.0, seed=3),
        max_tokens=25,
    ),
    "dry": GenerateParams(
        SamplingParams(temperature=0.4, dry_multiplier=2.0, seed=4), max_tokens=25
    ),
    "mirostat": GenerateParams(SamplingParams(mirostat=2, seed=5), max_tokens=25, logprobs=1),
    "adaptive": GenerateParams(
        SamplingParams(adaptive_target=0.3, samplers=("top_k", "adaptive_p"), seed=5), max_tokens=25
    ),
    "bias": GenerateParams(
        SamplingParams(logit_bias=((3, 4.0), (END, 1.5)), seed=6), max_tokens=25
    ),
    "grammar": GenerateParams(SAMPLED, max_tokens=25, grammar=GRAMMAR, logprobs=1),
    "greedy grammar": GenerateParams(GREEDY, max_tokens=25, grammar=GRAMMAR),
    "stop": GenerateParams(SAMPLED, max_tokens=25, stop=("ab", "q", "zz"), logprobs=0),
}
NEEDS_LLGUIDANCE = {"grammar", "greedy grammar"}
PROMPTS = [PROMPT, [9, 9], [1, 2, 3, 4, 5]]


def at(wrong: int) -> Spoil:
    """Drafts that are wrong at one place."""
    return lambda _number, place: int(place == wrong)


def before(number: int) -> Spoil:
    """Drafts that are wrong everywhere, up to the one of that number."""
    return lambda n, _place: int(n < number)


def without_source(events: Sequence[Event]) -> list[Event]:
    return [event._replace(source=TARGET) for event in events]


def write(
    how: Sequence[GenerateParams], oracle: Oracle | None, *, hybrid: bool, texts: Any = None
) -> tuple[list[list[Event]], list[list[int]], Any]:
    """Events and tokens of each text, all written at once."""
    engine = make_engine(hybrid=hybrid, drafter=oracle)
    sequences = [engine.add(prompt, each) for prompt, each in zip(PROMPTS, how, strict=False)]
    if oracle is not None:
        oracle.texts.update(enumerate(texts))
    events = drain(engine)
    assert_nothing_is_held(engine)
    of_each = [[event for event in events if event.sequence == one.id] for one in sequences]
    return of_each, [one.tokens for one in sequences], sequences


def compare(how: Sequence[GenerateParams], spoil: Spoil, *, hybrid: bool = False) -> Any:
    """With drafts that are right but for what `spoil` adds; the sequences with drafts."""
    want, texts, _ = write(how, None, hybrid=hybrid)
    # The oracle goes on behind the end of the text, where nothing may be looked at any more.
    longer = [[*text, *range(N_VOCAB)] for text in texts]
    got, _, sequences = write(how, Oracle(spoil), hybrid=hybrid, texts=longer)
    for one, other in zip(want, got, strict=True):
        assert without_source(other) == one
    return sequences


class Replacing(Oracle):
    """With another token at one place of every draft."""

    def __init__(self, place: int, token: int, *, length: int) -> None:
        super().__init__(length=length)
        self.place, self.token = place, token

    def _draft(self, ask: DraftRequest) -> Draft:
        draft = super()._draft(ask)
        if self.place < len(draft.tokens):
            draft.tokens[self.place] = self.token
        return draft


def skip_without_llguidance(name: str) -> None:
    if name in NEEDS_LLGUIDANCE:
        pytest.importorskip("llguidance")
