"""Sample and match against drafts that are out to break it.

Every text is compared, event by event, with that of an engine that has no drafts.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import (
    N_VOCAB,
    PROMPT,
    Oracle,
    ScriptedBackend,
    assert_nothing_is_held,
    drain,
    made,
    make_engine,
    params,
    text_of,
    write_alone,
)
from support.verifying import (
    HOW,
    PROMPTS,
    SAMPLED,
    Replacing,
    at,
    before,
    compare,
    skip_without_llguidance,
    without_source,
    write,
)

from nextn.core.engine.sequence import Sequence as EngineSequence
from nextn.core.errors import NonFiniteError
from nextn.core.generation import CANCELLED, ERROR, GenerateParams


# Window 5: drafts of up to 4 tokens. At place 4 nothing is wrong.
@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("wrong", range(5))
@pytest.mark.parametrize("name", HOW)
def test_a_fault_at_every_place(name: str, wrong: int, hybrid: bool) -> None:
    skip_without_llguidance(name)
    (sequence,) = compare([HOW[name]], at(wrong), hybrid=hybrid)
    stats = sequence.stats
    assert all(n == 0 for n in stats.accept_per_pos[wrong:])
    assert sum(stats.accept_per_pos) == stats.draft_n_accepted
    if wrong:
        assert stats.draft_n_accepted > 0


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("by", [1, 7, N_VOCAB - 1])
def test_three_texts_at_once(by: int, hybrid: bool) -> None:
    """Each with faults of its own, and with other parameters."""
    trio = [HOW["sampled"], HOW["penalties"], HOW["greedy"]]
    compare(trio, lambda number, place: by * ((number + place) % 3 == 0), hybrid=hybrid)


@pytest.mark.parametrize("fault", [0, 1])
def test_three_grammars_at_once(fault: int) -> None:
    """Drafts that a grammar refuses, and drafts behind its end."""
    skip_without_llguidance("grammar")
    trio = [HOW["grammar"], HOW["greedy grammar"], HOW["grammar"]]
    compare(trio, lambda number, place: fault * ((number + place) % 2))


def test_a_draft_that_no_grammar_allows() -> None:
    skip_without_llguidance("grammar")
    how = GenerateParams(SAMPLED, max_tokens=20, grammar='root ::= "abc" "d"*')
    compare([how], lambda number, place: 17 + number + place)


# Ends inside drafts ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_stop_string_inside_a_draft_and_across_drafts(n: int) -> None:
    """Every string of n characters that the text has, as a stop string, with drafts that begin
    everywhere."""
    text = text_of(write_alone(PROMPT, params(14), hybrid=False, n_ctx=48).tokens)
    for start in range(len(text) - n + 1):
        stop = text[start : start + n]
        for shift in range(4):
            compare([params(14, stop=(stop,))], before(shift))


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6, 11])
def test_drafts_longer_than_the_budget(budget: int) -> None:
    (sequence,) = compare([params(budget, logprobs=1)], lambda _n, _p: 0)
    assert sequence.stats.predicted_n <= budget


# What is not looked at ---------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(4))
def test_nan_behind_a_wrong_token_is_not_seen(place: int) -> None:
    """From the wrong token on, all rows of the draft are NaN."""
    want, texts, _ = write([params(12)], None, hybrid=False)
    backend = ScriptedBackend(poison=frozenset({59}))
    oracle = Replacing(place, 59, length=4)
    engine = make_engine(backend=backend, drafter=oracle)
    assert 59 not in texts[0]
    sequence = engine.add(PROMPT, params(12))
    oracle.texts[0] = texts[0]
    assert without_source(drain(engine)) == want[0]
    assert sequence.stats.draft_n > sequence.stats.draft_n_accepted


def test_nan_behind_accepted_tokens_ends_the_text() -> None:
    _, texts, _ = write([params(12)], None, hybrid=False)
    wanted = texts[0][len(PROMPT) :]
    oracle = Oracle()
    engine = make_engine(backend=ScriptedBackend(poison=frozenset({wanted[3]})), drafter=oracle)
    sequence = engine.add(PROMPT, params(12))
    oracle.texts[0] = texts[0]
    events = drain(engine)
    assert made(sequence) == wanted[:4]
    assert events[-1].stop_reason == ERROR
    assert isinstance(events[-1].error, NonFiniteError)
    assert sequence.stats.draft_n_accepted == sum(event.source == "oracle" for event in events)
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("n_steps", range(1, 6))
def test_cancelling_one_of_three_between_drafts(n_steps: int) -> None:
    trio = [HOW["sampled"], HOW["penalties"], HOW["greedy"]]
    want, texts, _ = write(trio, None, hybrid=True)
    oracle = Oracle(lambda number, place: (number + place) % 3 == 0)
    engine = make_engine(hybrid=True, drafter=oracle)
    sequences = [engine.add(prompt, each) for prompt, each in zip(PROMPTS, trio, strict=True)]
    oracle.texts.update(enumerate(texts))
    events = [event for _ in range(n_steps) for event in engine.step()]
    engine.cancel(sequences[1])
    events += drain(engine)
    for i in (0, 2):
        got = [event for event in events if event.sequence == i]
        assert without_source(got) == want[i]
    if sequences[1].stop_reason == CANCELLED:
        tokens = made(sequences[1])
        assert tokens == texts[1][len(PROMPTS[1]) :][: len(tokens)]
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("n_calls", range(1, 12))
def test_an_interrupt_inside_verification(n_calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a draft: what was running is given up, what comes after is sound."""
    _, texts, _ = write([HOW["sampled"]], None, hybrid=True)
    oracle = Oracle()
    engine = make_engine(hybrid=True, drafter=oracle)
    engine.add(PROMPT, HOW["sampled"])
    oracle.texts[0] = texts[0]
    calls = 0
    whole = EngineSequence.emit

    def interrupted(self: EngineSequence, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == n_calls:
            raise KeyboardInterrupt
        whole(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(EngineSequence, "emit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            drain(engine)
    again = engine.add(PROMPT, HOW["sampled"])
    oracle.texts[again.id] = texts[0]
    drain(engine)
    assert again.tokens == texts[0]
    assert_nothing_is_held(engine)
