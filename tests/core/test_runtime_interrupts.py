"""Ctrl-C while one of two texts is advanced: the other has one end, and no hole."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.boundaries import Boundary
from support.running import random_tokens
from support.thoroughness import share

import nextn.core
from nextn.core.generation import CANCELLED, LIMIT, NO_TOKEN, Event, GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams

N_TOKENS, QUICK = 6, 80
PROMPTS = [random_tokens(5, seed=2, n_vocab=256), random_tokens(7, seed=11, n_vocab=256)]


@pytest.fixture(params=["qwen3", "qwen35-mtp"])
def runtime(request: pytest.FixtureRequest, tiny: Callable[..., Any]) -> Iterator[Runtime]:
    name, _, mtp = request.param.partition("-")
    path = tiny(name, mtp=True).path if mtp else tiny(name).path
    with nextn.core.load(path, "cpu", n_ctx=64) as loaded:
        loaded.budget = loaded.plan(2)
        yield loaded


def begin(runtime: Runtime, prompt: list[int]) -> Generator[Event]:
    params = GenerateParams(SamplingParams(temperature=0), max_tokens=N_TOKENS, ignore_eos=True)
    events = runtime.generate(prompt, params)
    assert isinstance(events, Generator)
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events)


class Turns:
    """Two texts in turns, the second of which is interrupted in its step `n_before`."""

    def __init__(self, runtime: Runtime, n_before: int) -> None:
        self.runtime, self.n_before = runtime, n_before
        self.want = [list(begin(runtime, prompt)) for prompt in PROMPTS]

    def run(self, boundary: Boundary) -> None:
        other, ours = (begin(self.runtime, prompt) for prompt in PROMPTS)
        got = [next(other), next(other)]
        for _ in range(self.n_before):
            next(ours)
        with suppress(KeyboardInterrupt):
            boundary.call(lambda: next(ours))
        ours.close()
        got += other
        self.check_other(got)
        for prompt, whole in zip(PROMPTS, self.want, strict=True):
            again = list(begin(self.runtime, prompt))
            assert [e.token for e in again] == [e.token for e in whole]
            assert (text_of(again), again[-1].stop_reason) == (text_of(whole), LIMIT)
        assert not self.runtime.warm_up().has_work

    def check_other(self, got: list[Event]) -> None:
        whole = self.want[0]
        assert [event.stop_reason for event in got[:-1]] == [None] * (len(got) - 1)
        if got[-1].stop_reason == LIMIT:
            assert [e.token for e in got] == [e.token for e in whole]
            assert text_of(got) == text_of(whole)
            return
        assert (got[-1].stop_reason, got[-1].token) == (CANCELLED, NO_TOKEN)
        assert [e.token for e in got[:-1]] == [e.token for e in whole[: len(got) - 1]]
        assert text_of(got) == text_of(whole[: len(got) - 1])

    def n_boundaries(self) -> int:
        boundary = Boundary(-1, where_signals_come=True)
        self.run(boundary)
        return boundary.n_seen


@pytest.mark.parametrize("n_before", [0, 1])
def test_an_interrupt_anywhere(runtime: Runtime, n_before: int) -> None:
    turns, rng = Turns(runtime, n_before), random.Random(n_before)
    n = turns.n_boundaries()
    assert n > 100
    for at in rng.sample(range(1, n), min(QUICK, n - 1)):
        turns.run(Boundary(at, where_signals_come=True))


@pytest.mark.slow
@pytest.mark.parametrize("n_before", [0, 1])
def test_an_interrupt_at_every_boundary(runtime: Runtime, n_before: int) -> None:
    turns = Turns(runtime, n_before)
    for at in share(range(1, turns.n_boundaries()), 200):
        turns.run(Boundary(at, where_signals_come=True))
