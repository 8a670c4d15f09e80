"""Where a step is quick, nobody is asked in vain."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from support.ngrams import ANY

from specdec.core.speculation.chain import GLANCE_EVERY, LONGEST_REST, Chain
from specdec.core.speculation.interface import Ask, Draft, Opening, Speculator
from specdec.core.speculation.per_text import TextSpec
from specdec.core.speculation.plans import FixedPolicy
from specdec.core.state.store import SequenceState

FRESH = cast(SequenceState, SimpleNamespace(n_cells=0))


class Quick(FixedPolicy):
    """Steps take no time beside a question."""

    repeats = False

    def __init__(self, is_awake: bool = False) -> None:
        self.is_awake, self.n_rested = is_awake, 0

    def quick_ms(self) -> float:
        return 0.05

    def wants(self, sequence: int, source: str) -> bool:
        return self.is_awake

    def rested(self, sequence: int, n_rounds: int) -> None:
        self.n_rested += n_rounds


class Told(Speculator):
    """Knows something when it is told to."""

    def __init__(self, name: str, *, is_model: bool = False) -> None:
        self.name, self.is_model = name, is_model
        self.has_news, self.n_asked = False, 0

    def knows(self, ask: Ask) -> bool:
        return self.has_news

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self.n_asked += 1
        return [Draft([1], [self.name]) if self.has_news else Draft() for _ in asks]


def begun(policy: Quick, *speculators: Speculator) -> Chain:
    chain = Chain(speculators, policy)
    chain.begin(Opening(0, [1, 2], FRESH, spec=TextSpec()))
    return chain


def one_round(chain: Chain) -> Draft:
    """As the engine goes about it: a chain that rests is not asked."""
    if chain.rest:
        chain.rest -= 1
        return Draft()
    (draft,) = chain.propose([Ask(0, [1, 2], 8, ANY)])
    return draft


def test_nobody_is_asked_who_knows_nothing() -> None:
    ngrams, model, policy = Told("ngram"), Told("mtp", is_model=True), Quick()
    chain = begun(policy, ngrams, model)
    for _ in range(3 * LONGEST_REST):
        assert not one_round(chain).tokens
    assert ngrams.n_asked == model.n_asked == 0
    assert policy.n_rested > LONGEST_REST  # rests are told of: they bring trials nearer


def test_what_is_known_ends_a_rest_at_the_next_glance() -> None:
    ngrams, policy = Told("ngram"), Quick()
    chain = begun(policy, ngrams)
    one_round(chain)
    ngrams.has_news = True
    waited = next(i for i in range(LONGEST_REST) if one_round(chain).tokens)
    assert waited == GLANCE_EVERY


@pytest.mark.parametrize("is_awake", [True, False])
def test_a_model_that_is_awake_is_asked_every_time(is_awake: bool) -> None:
    model = Told("mtp", is_model=True)
    model.has_news = True
    chain = begun(Quick(is_awake), Told("ngram"), model)
    drafts = [one_round(chain).tokens for _ in range(10)]
    assert drafts == ([[1]] * 10 if is_awake else [[]] * 10)


def test_a_new_text_is_glanced_at_early_again() -> None:
    ngrams, policy = Told("ngram"), Quick()
    chain = begun(policy, ngrams)
    for _ in range(5 * LONGEST_REST):  # by now looks are rare
        one_round(chain)
    chain.end(0)
    chain.begin(Opening(0, [1, 2], FRESH, spec=TextSpec()))
    one_round(chain)
    ngrams.has_news = True
    waited = next(i for i in range(LONGEST_REST) if one_round(chain).tokens)
    assert waited == GLANCE_EVERY
