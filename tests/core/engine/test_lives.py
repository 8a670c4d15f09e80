"""Many texts at once, each as if it were alone: arrivals, cancels, drafts, hits, restores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Sequences
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.scripted import (
    NEVER_WRITTEN,
    PROMPT,
    SMALL,
    Oracle,
    alone,
    assert_nothing_is_held,
    drain,
    made,
    make_engine,
    params,
    write_alone_in,
)
from support.thoroughness import n_examples

from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence
from nextn.core.generation import (
    CANCELLED,
    NO_TOKEN,
    Event,
    GenerateParams,
)
from nextn.core.sampling.params import SamplingParams
from nextn.core.state import windows

# Few beginnings, so that prompts share pages, part within one, and are told again.
PROMPTS = st.builds(
    lambda length, tail: ([9, 1, 2, 3, 4, 5, 6, 7] * 4)[:length] + tail,
    st.sampled_from([0, 5, 6, 7, 13, 30]),
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
)
REQUESTS = st.builds(
    GenerateParams,
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 3),
        repeat_penalty=st.sampled_from([1.0, 1.3]),
    ),
    max_tokens=st.one_of(st.none(), st.integers(1, 20)),
    logprobs=st.just(0),
)
ACTIONS = st.one_of(
    st.tuples(st.just("add"), PROMPTS, REQUESTS),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("move"), st.integers(0, 5)),
)
ENGINES = st.fixed_dictionaries(
    {
        "hybrid": st.booleans(),
        "batch_invariant": st.booleans(),
        "attention_window": st.sampled_from([0, 1, 3, 9]),
        "sizes": st.builds(
            lambda n, spare, pages, window, idle: replace(
                SMALL, n_slots=n, n_checkpoints=spare, kv_pages=pages, window=window, max_idle=idle
            ),
            st.integers(1, 3),
            st.integers(0, 3),
            st.one_of(st.none(), st.integers(12, 20)),
            st.integers(1, 6),
            st.sampled_from([None, 0, 3]),
        ),
    }
)


class Life:
    """One engine, and what every text in it must become."""

    def __init__(self, engine: Engine, oracle: Oracle) -> None:
        self.engine, self.oracle = engine, oracle
        self.sequences: list[Sequence] = []
        self.events: dict[int, list[Event]] = {}

    def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case ("add", prompt, how):
                self.know(self.engine.add(prompt, how))
            case ("step", n):
                for _ in range(n):
                    self.step()
            case ("cancel", i) if i < len(self.sequences):
                self.engine.cancel(self.sequences[i])
            case ("move", i) if i < len(self.sequences):
                self.move(self.sequences[i])

    def know(self, sequence: Sequence) -> None:
        self.sequences.append(sequence)
        self.events.setdefault(sequence.id, [])
        self.oracle.texts[sequence.id] = sequence.tokens[: sequence.n_prompt] + self.want(sequence)

    def want(self, sequence: Sequence) -> list[int]:
        return alone(sequence.tokens[: sequence.n_prompt], sequence.params, self.engine)

    def move(self, sequence: Sequence) -> None:
        """Save it, end it, and let a restored one write the rest."""
        if sequence.stop_reason is None:
            snapshot = self.engine.snapshot(sequence)
            self.engine.cancel(sequence)
            self.know(self.engine.restore(snapshot))

    def step(self) -> None:
        for event in self.engine.step():
            self.events[event.sequence].append(event)
        check_windows(self.engine, self.sequences)

    def finish(self) -> None:
        while self.engine.has_work:
            self.step()

    def check(self, sequence: Sequence) -> None:
        tokens, want = made(sequence), self.want(sequence)
        if sequence.stop_reason == CANCELLED:
            want = want[: len(tokens)]
        assert tokens == want
        events = self.events[sequence.id]
        shown = [event for event in events if event.token != NO_TOKEN]
        assert [event.token for event in shown] == tokens[len(tokens) - len(shown) :]
        assert [event.stop_reason for event in events[:-1]] == [None] * (len(events) - 1)
        assert events[-1].stop_reason == sequence.stop_reason is not None
        self.check_logprobs(sequence, shown)

    def check_logprobs(self, sequence: Sequence, shown: list[Event]) -> None:
        prompt = sequence.tokens[: sequence.n_prompt]
        whole = write_alone_in(self.engine, prompt, sequence.params).logprobs
        first = len(made(sequence)) - len(shown)
        assert [event.logprob for event in shown] == whole[first : first + len(shown)]


def check_windows(engine: Engine, sequences: Sequences[Sequence]) -> None:
    """Each page of windowed layers belongs to those that see it. What is free is overwritten."""
    store = engine.store
    pool, sizes = store.windowed_pool, store.windows
    if pool is None or sizes is None:
        return
    held: Counter[int] = Counter()
    for sequence in sequences:
        if sequence.state is None:
            continue
        windowed = sequence.state.table.windowed
        assert windowed is not None
        own = windowed.pages[windowed.first :]
        assert len(own) <= sizes.per_slot
        assert windowed.first <= sizes.first_page(sequence.state.n_cells)
        assert len(windowed.pages) == len(sequence.state.table.pages)
        held.update(own)
    assert held.total() == sum(pool.n_holders(page) for page in range(pool.n_pages))
    assert all(pool.n_holders(page) == n for page, n in held.items())
    assert pool.n_idle <= sizes.max_idle
    pages = store.state.windowed.reshape(pool.n_pages, -1)
    pages[[page for page in range(pool.n_pages) if pool.is_free(page)]] = NEVER_WRITTEN


@settings(max_examples=n_examples(150), deadline=None)
@given(
    ENGINES,
    st.lists(ACTIONS, max_size=25),
    st.lists(st.integers(0, 1), min_size=1, max_size=7),
    st.integers(0, 8),
)
def test_every_text_is_as_if_it_were_alone(
    how: dict[str, Any], actions: list[tuple[Any, ...]], faults: list[int], length: int
) -> None:
    oracle = Oracle(lambda number, place: faults[(number + place) % len(faults)], length)
    with patch.object(windows, "MAX_LAG", 0):  # pages go as soon as they can
        life = Life(make_engine(drafter=oracle, **how), oracle)
    for action in actions:
        life.act(action)
    life.finish()
    for sequence in life.sequences:
        life.check(sequence)
    assert_nothing_is_held(life.engine)


def test_a_wrong_cell_would_be_seen() -> None:
    """The comparison above can fail: here a page is overwritten behind the engine's back."""
    engine = make_engine()
    sequence = engine.add(PROMPT, params())
    engine.step()
    engine.step()
    engine.store.state.cells[:] = 0
    drain(engine)
    assert made(sequence) != alone(PROMPT, params(), engine)


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_replay_count_would_be_seen(wrong: int) -> None:
    engine = make_engine(hybrid=True)
    sequence = engine.add(PROMPT, params())
    engine.step()
    engine.step()
    engine.step()
    assert sequence.state is not None
    assert sequence.state.n_pending_accepted not in (0, wrong)
    sequence.state.n_pending_accepted = wrong
    drain(engine)
    assert made(sequence) != alone(PROMPT, params(), engine)
