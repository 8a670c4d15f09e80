"""Where a step is quick, nobody is asked in vain."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from support.ngrams import ANY

from nextn.core.speculation.composite import GLANCE_EVERY, LONGEST_REST, CompositeSpeculator
from nextn.core.speculation.controller import Controller
from nextn.core.speculation.interface import Draft, DraftRequest, SequenceStart, Speculator
from nextn.core.speculation.per_text import TextSpec
from nextn.core.speculation.plans import FixedPolicy, Plan, PlanRequest, Policy
from nextn.core.state.store import SequenceState

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

    def knows(self, ask: DraftRequest) -> bool:
        return self.has_news

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        self.n_asked += 1
        return [Draft([1], [self.name]) if self.has_news else Draft() for _ in asks]


def begun(policy: Policy, *speculators: Speculator) -> CompositeSpeculator:
    chain = CompositeSpeculator(speculators, policy)
    chain.begin(SequenceStart(0, [1, 2], FRESH, spec=TextSpec()))
    return chain


def one_round(chain: CompositeSpeculator) -> Draft:
    """As the engine goes about it: a chain that rests is not asked."""
    if chain.rest:
        chain.rest -= 1
        return Draft()
    (draft,) = chain.propose([DraftRequest(0, [1, 2], 8, ANY)])
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
    chain.begin(SequenceStart(0, [1, 2], FRESH, spec=TextSpec()))
    one_round(chain)
    ngrams.has_news = True
    waited = next(i for i in range(LONGEST_REST) if one_round(chain).tokens)
    assert waited == GLANCE_EVERY


class Slow(Quick):
    """A question takes little beside a step."""

    naps = False

    def quick_ms(self) -> float:
        return 0.0

    def wants(self, sequence: int, source: str) -> bool:
        return True

    def may_nap(self, sequence: int, source: str) -> bool:
        return self.naps


def test_where_nobody_could_draft_n_grams_are_looked_at_in_every_round() -> None:
    """A model naps until it is to be tried again. There is no question meanwhile, and no rest."""
    ngrams, model, policy = Told("ngram"), Told("mtp", is_model=True), Slow()
    chain = begun(policy, ngrams, model)
    chain.propose([DraftRequest(0, [1, 2], 8, ANY)])
    assert ngrams.n_asked == 1
    policy.naps = True
    for _ in range(50):
        assert not chain.propose([DraftRequest(0, [1, 2], 8, ANY)])[0].tokens
    n_asked, n_rested = ngrams.n_asked, policy.n_rested
    assert n_asked < 10  # until it was noticed that the model naps
    assert n_rested + n_asked > 40
    ngrams.has_news = True
    (draft,) = chain.propose([DraftRequest(0, [1, 2], 8, ANY)])
    assert draft.tokens == [1]
    assert policy.n_rested + n_asked == 51  # every round was told of, before the question
    ngrams.has_news, policy.naps, model.has_news = False, False, True
    drafts = [chain.propose([DraftRequest(0, [1, 2], 8, ANY)])[0].tokens for _ in range(10)]
    assert drafts[-1] == [1]


def test_where_rounds_are_made_by_a_device_a_model_stays_awake() -> None:
    model, policy = Told("mtp", is_model=True), Slow()
    chain = begun(policy, Told("ngram"), model)
    policy.naps = True
    assert chain.hears(0, model)


class Knowing(Told):
    """Says what comes next of a text that counts upwards."""

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        self.n_asked += 1
        first = asks[0].tokens[-1] + 1
        return [Draft(list(range(first, first + 64)), [self.name] * 64, chances=[0.9] * 64)]


class Short(Quick):
    """Takes three tokens of what n-grams propose."""

    def plan(self, asks: Sequence[PlanRequest]) -> list[Plan]:
        return [Plan(cheap=0, n_cheap=3) for _ in asks]


def test_nobody_is_asked_while_a_run_is_right() -> None:
    ngrams, policy = Knowing("ngram"), Short()
    ngrams.has_news = True
    chain, text, lengths = begun(policy, ngrams), [1, 2], []
    for _ in range(4):
        (draft,) = chain.propose([DraftRequest(0, text, 64, ANY)])
        lengths.append(len(draft.tokens))
        text = list(range(1, len(text) + len(draft.tokens) + 2))
        chain.settle(0, len(draft.tokens), mine=True)
    assert (lengths, ngrams.n_asked) == ([3, 7, 15, 31], 1)
    (draft,) = chain.propose(
        [DraftRequest(0, [*text[:-1], 0], 64, ANY)]
    )  # another token than foreseen
    assert ngrams.n_asked == 2


@pytest.mark.parametrize("how", ["limit", "text", "two texts"])
def test_what_ends_a_run(how: str) -> None:
    ngrams = Knowing("ngram")
    ngrams.has_news = True
    chain = begun(Short(), ngrams)
    chain.propose([DraftRequest(0, [1, 2], 64, ANY)])
    asks = [DraftRequest(0, [1, 2, 3, 4, 5, 6], 64, ANY)]
    if how == "limit":
        chain.limit(0, frozenset({"ngram"}))
    elif how == "text":
        chain.begin(SequenceStart(0, [1, 2], FRESH, spec=TextSpec()))
    else:
        asks.append(DraftRequest(1, [1, 2, 3], 64, ANY))
        ngrams.propose = lambda asks: [Draft() for _ in asks]  # type: ignore[method-assign]
    drafts = chain.propose(asks)
    assert [len(draft.tokens) for draft in drafts] == ([0, 0] if how == "two texts" else [3])


def rounds_asked(chain: CompositeSpeculator, policy: Policy, n: int, ms: float) -> int:
    """In how many of so many plain rounds the chain was asked; it is told what steps take."""
    n_asked = 0
    for _ in range(n):
        n_asked += not chain.rest
        one_round(chain)
        if chain.skips_step:
            chain.skips_step = False
        elif not chain.rest:
            policy.observe_step(1, 100, ms)
    return n_asked


def test_n_grams_that_have_never_known_anything_rest_too() -> None:
    """A model without a head: there never is a plan, by which quick steps would be noticed."""
    ngrams, policy = Told("ngram"), Controller()
    chain = begun(policy, ngrams)
    rounds_asked(chain, policy, 20, 0.1)
    assert rounds_asked(chain, policy, 200, 0.1) < 20
    assert ngrams.n_asked == 0


def test_a_text_that_joins_others_is_looked_at_soon_but_not_at_once() -> None:
    """A question takes longer for many, and where texts come and go there would be one for each."""
    ngrams, policy = Told("ngram"), Quick()
    chain = begun(policy, ngrams)
    for _ in range(5 * LONGEST_REST):
        one_round(chain)
    while chain.rest <= GLANCE_EVERY:
        one_round(chain)
    n_rested, left = policy.n_rested, chain.rest
    chain.begin(SequenceStart(1, [1, 2], FRESH, spec=TextSpec()))
    assert 0 < chain.rest <= GLANCE_EVERY < left
    ngrams.has_news = True
    waited = next(i for i in range(LONGEST_REST) if one_round(chain).tokens)
    assert waited <= GLANCE_EVERY
    assert policy.n_rested - n_rested <= LONGEST_REST  # rounds that did not pass are not told of
