"""Speculators that fail: with forgiveness, texts go on without drafts and are what they were."""

from __future__ import annotations

import random

import pytest
from support.scripted import (
    PROMPT,
    Oracle,
    alone,
    assert_nothing_is_held,
    drain,
    made,
    make_engine,
    params,
)

from nextn.core.engine.engine import Engine
from nextn.core.engine.speculator_host import FORGOTTEN_AFTER, MAX_FAILURES
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.interface import SequenceStart, StepResult

METHODS = ("begin", "propose", "observe", "settle", "end", "carry")


class Failing(Oracle):
    """Raises in `where`, when `when` is its turn; counts the turns of all methods together."""

    def __init__(self, where: str, when: set[int]) -> None:
        super().__init__()
        self.where, self.when, self.turn = where, when, 0
        self.known: set[int] = set()

    def _maybe(self, where: str) -> None:
        if where == self.where:
            self.turn += 1
            if self.turn in self.when:
                raise RuntimeError(f"injected into {where}")

    def begin(self, opening: SequenceStart) -> None:
        assert opening.sequence not in self.known
        self.known.add(opening.sequence)
        self._maybe("begin")

    def propose(self, asks: list[DraftRequest]) -> list[Draft]:  # type: ignore[override]
        assert all(ask.sequence in self.known for ask in asks)
        drafts = super().propose(asks)
        self._maybe("propose")
        return drafts

    def observe(self, seen: StepResult) -> None:
        self._maybe("observe")

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        super().settle(sequence, n_accepted, mine=mine)
        self._maybe("settle")

    def carry(self, sequence: int) -> dict[str, bytes]:
        self._maybe("carry")
        return {}

    def end(self, sequence: int) -> None:
        self.known.discard(sequence)
        super().end(sequence)
        self._maybe("end")


def run(engine: Engine, drafter: Oracle, n: int, seed: int = 0) -> None:
    """Texts that come one after another, two or three at a time, each as if alone."""
    rng, how = random.Random(seed), params(14)
    for _ in range(n):
        prompts = [[*PROMPT, rng.randrange(50)] for _ in range(rng.randrange(1, 4))]
        truths = [alone(prompt, how, engine) for prompt in prompts]
        texts = [engine.add(prompt, how) for prompt in prompts]
        for text, prompt, truth in zip(texts, prompts, truths, strict=True):
            drafter.texts[text.id] = [*prompt, *truth]
        drain(engine)
        assert [made(text) for text in texts] == truths
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("where", METHODS)
def test_one_failure_costs_drafts_and_nothing_else(where: str, hybrid: bool) -> None:
    drafter = Failing(where, {3})
    engine, told = make_engine(hybrid=hybrid, drafter=drafter), list[Exception]()
    engine.disable_drafters_on_error(told.append)
    run(engine, drafter, 12)
    assert [str(error) for error in told] == [f"injected into {where}"]
    assert not drafter.known
    assert drafter.settled[-1][1] > 0  # later texts are drafted again


@pytest.mark.parametrize("where", METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_failures_here_and_there(where: str, seed: int) -> None:
    drafter = Failing(where, set(random.Random(seed).sample(range(1, 60), 20)))
    engine, told = make_engine(drafter=drafter), list[Exception]()
    engine.disable_drafters_on_error(told.append)
    run(engine, drafter, 20, seed)
    assert 1 <= len(told) <= MAX_FAILURES


def test_who_always_fails_is_not_asked_any_more() -> None:
    drafter = Failing("propose", set(range(1000)))
    engine, told = make_engine(drafter=drafter), list[Exception]()
    engine.disable_drafters_on_error(told.append)
    run(engine, drafter, 10)
    assert len(told) == drafter.turn == MAX_FAILURES


def test_old_failures_are_forgotten() -> None:
    drafter = Failing("begin", {2, 4, 10 + FORGOTTEN_AFTER, 12 + FORGOTTEN_AFTER})
    engine, told = make_engine(drafter=drafter), list[Exception]()
    engine.disable_drafters_on_error(told.append)
    run(engine, drafter, 100)
    assert len(told) == 4
    assert drafter.settled[-1][1] > 0


def test_without_forgiveness_it_is_an_error() -> None:
    engine = make_engine(drafter=Failing("propose", {2}))
    engine.add(PROMPT, params(14))
    with pytest.raises(RuntimeError, match="injected"):
        drain(engine)
