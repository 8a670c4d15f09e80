"""How texts end, fail and are cancelled; drafts; what is counted."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.scripted import (
    END,
    N_VOCAB,
    PROMPT,
    SMALL,
    Oracle,
    ScriptedBackend,
    alone,
    assert_nothing_is_held,
    drain,
    made,
    make_engine,
    of,
    params,
    text_of,
    write_alone,
)

from nextn.core.errors import ConfigError, NonFiniteError, NothingLeftError
from nextn.core.generation import (
    CANCELLED,
    CONTEXT,
    EOS,
    ERROR,
    LIMIT,
    NO_TOKEN,
    GenerateParams,
)
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.request_spec import RequestSpec

# Ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_budget(n: int) -> None:
    engine = make_engine()
    sequence = engine.add(PROMPT, params(n))
    assert [event.stop_reason for event in drain(engine)] == [None] * (n - 1) + [LIMIT]
    assert len(made(sequence)) == n


def prompt_that_ends() -> list[int]:
    """One whose greedy text ends by itself, after a few tokens."""
    for first in range(END):
        text = write_alone([first, 1], params(20), hybrid=False, n_ctx=48).tokens
        if text[-1] == END and len(text) > 3:
            return [first, 1]
    raise AssertionError("no such prompt")


def test_the_model_ends_the_text() -> None:
    engine, prompt = make_engine(), prompt_that_ends()
    sequence = engine.add(prompt, params(20))
    events = drain(engine)
    assert sequence.stop_reason == events[-1].stop_reason == EOS
    assert events[-1].token == END
    assert "".join(event.text for event in events) == text_of(made(sequence))


def test_the_model_may_not_end_the_text() -> None:
    engine, prompt = make_engine(), prompt_that_ends()
    sequence = engine.add(prompt, params(20, ignore_eos=True))
    drain(engine)
    assert sequence.stop_reason == LIMIT
    assert len(made(sequence)) == 20
    assert END not in made(sequence)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("draft", [0, 3, 64])
@pytest.mark.parametrize("missing", [1, 2, 3, 6])
def test_a_full_context_ends_the_text(missing: int, draft: int, hybrid: bool) -> None:
    """Drafts that would go past the end included."""
    n_ctx = SMALL.n_ctx
    prompt = ([7, 1, 3] * n_ctx)[: n_ctx - missing]
    how = params(None, ignore_eos=True)
    oracle = Oracle(length=draft)
    engine = make_engine(hybrid=hybrid, drafter=oracle)
    sequence = engine.add(prompt, how)
    oracle.texts[0] = prompt + [1] * 100
    events = drain(engine)
    assert [event.stop_reason for event in events] == [None] * (missing - 1) + [CONTEXT]
    assert len(sequence.tokens) == n_ctx
    assert sequence.stats.draft_n <= sequence.stats.predicted_n * draft


@pytest.mark.parametrize("length", [48, 49, 100])
def test_a_prompt_that_leaves_no_room(length: int) -> None:
    with pytest.raises(ConfigError, match=f"{length} tokens.*context size of 48"):
        make_engine().add([1] * length)


@pytest.mark.parametrize(("prompt", "said"), [([], "empty"), ([1, -1], "-1 at"), ([61], "61 at")])
def test_impossible_prompts(prompt: list[int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_engine().add(prompt)


# Cancelling and failing --------------------------------------------------------------------------


@pytest.mark.parametrize("n_steps", range(6))
def test_cancelling(n_steps: int) -> None:
    """While it waits, during its prompt, during its text."""
    engine = make_engine()
    gone, stays = engine.add(PROMPT * 2, params(ignore_eos=True)), engine.add([9, 9], params())
    events = [event for _ in range(n_steps) for event in engine.step()]
    engine.cancel(gone)
    engine.cancel(gone)
    events += drain(engine)
    last = of(gone, events)[-1]
    assert (last.token, last.stop_reason) == (NO_TOKEN, CANCELLED)
    assert made(stays) == alone([9, 9], params(), engine)
    assert_nothing_is_held(engine)


def test_nan_ends_one_text_only() -> None:
    want = write_alone(PROMPT, params(), hybrid=False, n_ctx=48).tokens
    backend = ScriptedBackend(poison=frozenset({want[3]}))
    engine = make_engine(backend=backend)
    bad, good = engine.add(PROMPT, params()), engine.add([9, 9], params(3))
    events = drain(engine)
    last = of(bad, events)[-1]
    assert (last.token, last.stop_reason) == (NO_TOKEN, ERROR)
    assert isinstance(last.error, NonFiniteError)
    assert made(bad) == want[:4]
    assert made(good) == alone([9, 9], params(3), engine)
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("accept", ["", "ratio", "relaxed:2,0.5,always"])
def test_bans_that_leave_nothing_end_one_text_only(accept: str) -> None:
    """Every verifier: the others go on as if they were alone."""
    bans = SamplingParams(logit_bias=tuple((token, -math.inf) for token in range(N_VOCAB)))
    engine = make_engine(drafter=Oracle())
    how = GenerateParams(bans, max_tokens=9, spec=RequestSpec(accept=accept))
    bad, good = engine.add(PROMPT, how), engine.add([9, 9], params(5))
    events = drain(engine)
    last = of(bad, events)[-1]
    assert (last.token, last.stop_reason) == (NO_TOKEN, ERROR)
    assert isinstance(last.error, NothingLeftError)
    assert made(good) == alone([9, 9], params(5), engine)
    assert_nothing_is_held(engine)


def test_nan_behind_the_end_of_a_text_is_not_seen() -> None:
    want = write_alone(PROMPT, params(3), hybrid=False, n_ctx=48).tokens
    oracle = Oracle()
    backend = ScriptedBackend(poison=frozenset({END}))
    engine = make_engine(backend=backend, drafter=oracle)
    sequence = engine.add(PROMPT, params(2))
    oracle.texts[0] = [*PROMPT, *want]
    drain(engine)
    assert (made(sequence), sequence.stop_reason) == (want[:2], LIMIT)


def test_what_a_failed_prompt_left_is_not_used() -> None:
    engine = make_engine(backend=ScriptedBackend(poison=frozenset({PROMPT[-1]})))
    engine.add(PROMPT, params())
    drain(engine)
    again = engine.add([*PROMPT[:-1], 0], params())
    drain(engine)
    assert again.stats.cached_n == 0


def test_what_nobody_vouches_for_is_not_used() -> None:
    """Cancelled before any logits were seen: the cells may hold NaN."""
    engine = make_engine()
    gone = engine.add([*PROMPT, *PROMPT], params())
    engine.step()
    assert gone.state is not None
    assert gone.state.n_cells == 8
    engine.cancel(gone)
    again = engine.add(PROMPT, params())
    drain(engine)
    assert again.stats.cached_n == 0


PLACES = [
    "nextn.core.engine.scheduler.Scheduler._open",
    "nextn.core.engine.scheduler.Scheduler._pieces",
    "nextn.core.state.state_rows.StateRows.step",
    "nextn.core.engine.sequence.Sequence.emit",
    "nextn.core.engine.sequence.Sequence.count",
    "nextn.core.state.store.SequenceState.advance",
    "nextn.core.state.store.StateStore.publish",
    "nextn.core.state.pages.PagePool.take",
    "nextn.core.state.pages.PagePool.release",
]


@pytest.mark.parametrize("place", [*PLACES, "model"])
def test_an_interrupt_anywhere_spoils_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while others run and wait; then the same texts again, and one that had waited."""
    backend, oracle = ScriptedBackend(hybrid=True), Oracle()
    engine = make_engine(backend=backend, drafter=oracle)
    sequences = [engine.add([*PROMPT, i], params()) for i in range(5)]
    for _ in range(4):
        engine.step()
    told: list[Any] = []

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    engine.cancel(sequences[0])
    with monkeypatch.context() as patch:
        if place == "model":
            patch.setattr(backend, "before_step", interrupt)
        else:
            patch.setattr(place, interrupt)

        def go_on() -> None:
            while engine.has_work:
                told.extend(engine.step())

        with pytest.raises(KeyboardInterrupt):
            go_on()
    sequences += [engine.add([*PROMPT, i], params()) for i in range(3)]
    events = told + drain(engine)
    for i, sequence in enumerate(sequences):
        want = alone([*PROMPT, i % 5], params(), engine)
        if sequence.stop_reason == CANCELLED:
            assert of(sequence, events)[-1].stop_reason == CANCELLED
        else:
            assert made(sequence) == want
    assert sum(sequence.stop_reason == CANCELLED for sequence in sequences) < 5
    assert_nothing_is_held(engine)


# Drafts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("wrong", range(5))
def test_a_wrong_draft_token_at_every_place(wrong: int, hybrid: bool) -> None:
    """Window 5: drafts of 4 tokens. At place `wrong` the token is wrong; 4: none is."""
    how = params(30, ignore_eos=True, logprobs=2)
    plain = make_engine(hybrid=hybrid)
    without = plain.add(PROMPT, how)
    want = drain(plain)
    oracle = Oracle(lambda _number, place: int(place == wrong))
    engine = make_engine(hybrid=hybrid, drafter=oracle)
    sequence = engine.add(PROMPT, how)
    oracle.texts[0] = without.tokens
    got = drain(engine)
    assert [event._replace(source="target") for event in got] == want
    stats = sequence.stats
    assert stats.draft_n_accepted == sum(event.source == "oracle" for event in got) > 0 or not wrong
    assert stats.steps < without.stats.steps or not wrong
    assert all(n == 0 for n in stats.accept_per_pos[wrong:])
    assert stats.by_source["oracle"].drafted == stats.draft_n
    assert stats.predicted_n == 30
    assert sum(n for _, n in oracle.settled) == stats.draft_n_accepted
    assert oracle.ended == [0]


def test_statistics_without_drafts() -> None:
    engine = make_engine()
    stats = engine.add(PROMPT, params(9)).stats
    drain(engine)
    assert (stats.prompt_n, stats.predicted_n, stats.steps, stats.draft_n) == (10, 9, 9, 0)
    assert stats.mean_accept_len == 1.0
    assert min(stats.prompt_ms, stats.predicted_ms) > 0
    assert stats.as_json()["by_source"] == {}


def test_top_logprobs() -> None:
    engine = make_engine()
    engine.add(PROMPT, params(3, logprobs=4))
    for event in drain(engine):
        values = [value for _, value in event.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert event.top_logprobs[0] == (event.token, event.logprob)
        assert len(values) == 4


def test_no_logprobs_unless_asked_for() -> None:
    engine = make_engine()
    engine.add(PROMPT, params(2))
    assert {event.logprob for event in drain(engine)} == {None}
