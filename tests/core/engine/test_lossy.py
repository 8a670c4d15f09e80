"""The two modes that change the text, each within its bounds: relaxed and synthetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.scripted import (
    END,
    GREEDY,
    N_VOCAB,
    PROMPT,
    SMALL,
    Oracle,
    ScriptedTokenizer,
    assert_nothing_is_held,
    drain,
    made,
    make_engine,
    next_logits,
    params,
)
from support.verifying import HOW, at, write

from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence as EngineSequence
from nextn.core.errors import ConfigError
from nextn.core.generation import EOS, STOP, TARGET, GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.acceptance import Acceptance
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.interface import Speculator
from nextn.core.speculation.synthetic import chances_of, rates_for_length

OPEN, CLOSE = 21, 22
MARKS = {"<think>": OPEN, "</think>": CLOSE}
ALWAYS = Acceptance("relaxed", 3, 1.0, always=True)
FOREVER = GenerateParams(GREEDY, max_tokens=20, ignore_eos=True)


class Ranked(Speculator):
    """Drafts the target's second best token, or that of another rank, all along."""

    def __init__(self, rank: int = 1) -> None:
        self.rank = rank

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: DraftRequest) -> Draft:
        text = list(ask.tokens)
        for _ in range(ask.max_draft):
            logits = next_logits(text, hybrid=False)
            logits[END] = -np.inf
            text.append(int(np.argsort(-logits)[self.rank]))
        tokens = text[len(ask.tokens) :]
        return Draft(tokens, ["ranked"] * len(tokens))


def relaxing(acceptance: Acceptance, drafter: Speculator, **marks: int) -> Engine:
    tokenizer = ScriptedTokenizer(marks or MARKS)
    return make_engine(drafter=drafter, acceptance=acceptance, tokenizer=tokenizer)


def ranks(text: EngineSequence) -> list[int]:
    """Of each token that was made, among what could have come at its place."""
    found = []
    for n in range(text.n_prompt, len(text.tokens)):
        logits = next_logits(text.tokens[:n], hybrid=False)
        if text.params.ignore_eos:
            logits[END] = -np.inf
        found.append(int((logits > logits[text.tokens[n]]).sum()))
    return found


@pytest.mark.parametrize(
    "acceptance",
    [
        Acceptance(),
        Acceptance("ratio"),
        ALWAYS,
        Acceptance("synthetic", chances=(1.0,) * 4),
    ],
    ids=lambda acceptance: acceptance.mode,
)
@pytest.mark.parametrize("place", range(5))
def test_a_text_that_ends_inside_a_draft_is_counted_to_the_end(
    acceptance: Acceptance, place: int
) -> None:
    """By a stop string that comes up with a drafted token: that one was accepted, too."""
    how = GenerateParams(SamplingParams(temperature=0.7, top_p=1e-6), max_tokens=20)
    text = write([how], None, hybrid=False)[1][0]
    piece = ScriptedTokenizer().piece(text[len(PROMPT) + place]).decode()
    oracle = Oracle(length=4)
    engine = make_engine(drafter=oracle, acceptance=acceptance)
    oracle.texts[0] = text
    sequence = engine.add(PROMPT, replace(how, stop=(piece,)))
    events = drain(engine)
    assert sequence.stop_reason == STOP
    assert made(sequence) == text[len(PROMPT) :][: len(events)]
    n_drafted = sum(event.source != TARGET for event in events)
    assert sequence.stats.draft_n_accepted == n_drafted
    assert sum(n for _, n in oracle.settled) == n_drafted
    assert len(events) == n_drafted + sequence.stats.steps - (events[-1].source != TARGET)


# Relaxed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "top_n", "is_taken"), [(1, 2, True), (2, 3, True), (2, 2, False)])
def test_only_what_is_among_the_best(rank: int, top_n: int, is_taken: bool) -> None:
    engine = relaxing(replace(ALWAYS, top_n=top_n), Ranked(rank))
    text = engine.add(PROMPT, FOREVER)
    events = drain(engine)
    assert (rank in ranks(text)) == is_taken
    assert set(ranks(text)) <= {0, rank}
    stats = text.stats
    assert (stats.relaxed_n > 0) == is_taken
    assert stats.relaxed_n == stats.draft_n_accepted == sum(e.source != TARGET for e in events)
    assert stats.as_json()["accept_mode"] == "relaxed"


def test_only_what_is_likely_enough() -> None:
    """Recomputed from the logits."""
    delta = 0.03
    engine = relaxing(replace(ALWAYS, delta=delta), Ranked())
    text = engine.add(PROMPT, FOREVER)
    drain(engine)
    n_relaxed = 0
    for n in range(text.n_prompt, len(text.tokens)):
        logits = next_logits(text.tokens[:n], hybrid=False).astype(float)
        logits[END] = -math.inf
        chances = np.exp(logits - logits.max())
        chances /= chances.sum()
        n_relaxed += chances[text.tokens[n]] < chances.max()
        assert chances[text.tokens[n]] >= chances.max() - delta - 1e-12
    assert 0 < n_relaxed == text.stats.relaxed_n < text.stats.draft_n


@pytest.mark.parametrize("acceptance", [replace(ALWAYS, top_n=1), replace(ALWAYS, delta=0.0)])
@pytest.mark.parametrize("wrong", range(5))
@pytest.mark.parametrize("name", ["greedy", "sampled", "penalties", "mirostat"])
def test_without_slack_the_text_is_that_of_plain_decoding(
    name: str, wrong: int, acceptance: Acceptance
) -> None:
    """With draft tokens that are right, or not the best one."""
    want, texts, _ = write([HOW[name]], None, hybrid=False)
    engine = relaxing(acceptance, oracle := Oracle(at(wrong)))
    text = engine.add(PROMPT, HOW[name])
    oracle.texts[0] = texts[0]
    got = drain(engine)
    if not text.stats.relaxed_n:
        assert [event._replace(source=TARGET) for event in got] == want[0]
    else:  # where sampling did not pick the best token, and the draft had it
        assert HOW[name].sampling.temperature > 0


def test_only_while_the_text_is_a_thought() -> None:
    """From the mark in the prompt to the one in the text, which the target has to write itself,
    however lax the rule is."""

    class Closing(Ranked):
        def _draft(self, ask: DraftRequest) -> Draft:
            return Draft([CLOSE], ["ranked"]) if len(ask.tokens) % 3 else super()._draft(ask)

    biased = replace(GREEDY, logit_bias=((OPEN, -math.inf), (CLOSE, 0.3005)))
    how = replace(FOREVER, sampling=biased, max_tokens=36)
    n_thoughts = n_relaxed = 0
    for drafter in (Ranked(), Closing()):
        for first in range(12):
            engine = relaxing(Acceptance("relaxed", N_VOCAB, 1.0), drafter)
            text = engine.add([first, OPEN, 4], how)
            drain(engine)
            found = [*made(text), CLOSE]
            end = found.index(CLOSE)
            n_thoughts += 3 < end < 30
            n_relaxed += text.stats.relaxed_n
            assert text.stats.relaxed_n <= end
            for n in range(end, len(found) - 1):
                logits = next_logits(text.tokens[: text.n_prompt + n], hybrid=False)
                logits[CLOSE] += np.float32(0.3005)
                logits[[END, OPEN]] = -np.inf
                assert found[n] == logits.argmax()
    assert n_thoughts > 2
    assert n_relaxed > 20


@pytest.mark.parametrize("prompt", [PROMPT, [OPEN, 3, CLOSE, 5]])
def test_not_outside_of_thoughts(prompt: list[int]) -> None:
    bias = replace(FOREVER, sampling=replace(GREEDY, logit_bias=((OPEN, -math.inf),)))
    plain = make_engine()
    want = plain.add(prompt, bias)
    drain(plain)
    engine = relaxing(Acceptance("relaxed", N_VOCAB, 1.0), Ranked())
    text = engine.add(prompt, bias)
    drain(engine)
    assert text.tokens == want.tokens
    assert text.stats.relaxed_n == 0
    assert text.stats.draft_n > 0


def test_the_end_has_to_be_the_targets_own() -> None:
    class Ending(Speculator):
        def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
            return [Draft([END], ["ending"]) for _ in asks]

    engine = relaxing(Acceptance("relaxed", N_VOCAB, 1.0, always=True), Ending())
    text = engine.add([9, 9], replace(FOREVER, ignore_eos=False))
    plain = make_engine()
    want = plain.add([9, 9], replace(FOREVER, ignore_eos=False))
    drain(engine)
    drain(plain)
    assert text.tokens == want.tokens


def test_bans_and_grammar_hold_while_relaxed() -> None:
    pytest.importorskip("llguidance")
    lax = Acceptance("relaxed", N_VOCAB, 1.0, always=True)
    for token in range(6):
        banned = replace(GREEDY, logit_bias=((token, -math.inf),))
        how = GenerateParams(banned, max_tokens=30, grammar='root ::= "a" [a-f]+ "z"')
        oracle = Oracle()
        engine = relaxing(lax, oracle)
        text = engine.add(PROMPT, how)
        oracle.texts[0] = [*PROMPT, *[token, 1, 2, 3, 4, 5, 25, 7, END] * 5]
        written = "".join(event.text for event in drain(engine))
        assert token not in made(text)
        assert written[0] == "a"
        assert set(written[:-1]) <= set("abcdef")
        assert text.stats.relaxed_n > 0


@pytest.mark.parametrize("marks", [{"<think>": 1}, {"[THINK]": 1, "</think>": 2}, {"x": 0}])
def test_a_model_without_thoughts_is_refused(marks: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"no tokens that open and close.*always") as caught:
        relaxing(Acceptance("relaxed"), Ranked(), **marks)
    assert "\n" not in str(caught.value)
    relaxing(ALWAYS, Ranked(), **marks)


def test_saved_thoughts_go_on() -> None:
    """The phase is part of the text, so it needs no saving."""
    engine = relaxing(Acceptance("relaxed", 3, 1.0), Ranked())
    whole = engine.add([*PROMPT, OPEN], FOREVER)
    parted = engine.add([*PROMPT, OPEN], FOREVER)
    for _ in range(4):
        engine.step()
    snapshot = engine.snapshot(parted)
    engine.cancel(parted)
    restored = engine.restore(snapshot)
    drain(engine)
    assert restored.tokens == whole.tokens
    assert restored.stats.relaxed_n > 0


# Synthetic ---------------------------------------------------------------------------------------

LONG = replace(SMALL, n_ctx=1000, n_slots=1, n_checkpoints=0)


def synthetic(rates: Sequence[float]) -> Acceptance:
    return Acceptance("synthetic", chances=chances_of(rates))


class Constant(Speculator):
    """The same token for ever, which no target wants."""

    def __init__(self, token: int = 7) -> None:
        self.token = token

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft([self.token] * ask.max_draft, ["const"] * ask.max_draft) for ask in asks]


def run(
    acceptance: Acceptance, drafter: Speculator, how: GenerateParams, **more: Any
) -> EngineSequence:
    engine = make_engine(drafter=drafter, acceptance=acceptance, **more)
    text = engine.add(PROMPT, how)
    drain(engine)
    assert_nothing_is_held(engine)
    return text


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("make", [Constant, Ranked])
def test_rates_of_zero_are_plain_decoding(make: Callable[[], Speculator], hybrid: bool) -> None:
    want, _, _ = write([HOW["penalties"]], None, hybrid=hybrid)
    text = run(synthetic((0.0,) * 4), make(), HOW["penalties"], hybrid=hybrid)
    assert made(text) == [event.token for event in want[0]]
    assert text.stats.draft_n_accepted == 0
    assert text.stats.draft_n > 0


@pytest.mark.parametrize("hybrid", [False, True])
def test_rates_of_one_accept_everything(hybrid: bool) -> None:
    text = run(synthetic((1.0,) * 4), Constant(), FOREVER, hybrid=hybrid)
    stats = text.stats
    assert stats.draft_n_accepted == stats.draft_n > 0
    assert stats.as_json()["accept_mode"] == "synthetic"
    assert made(text)[1:5] == [7] * 4


@pytest.mark.parametrize("length", [1.1, 2.0, 3.0, 4.5])
def test_the_mean_length(length: float) -> None:
    rates = rates_for_length(length, 4)
    how = replace(FOREVER, max_tokens=980)
    text = run(synthetic(rates), Constant(), how, sizes=LONG)
    stats = text.stats
    assert stats.mean_accept_len == pytest.approx(length, rel=0.1)
    assert stats.accept_rates == pytest.approx(rates, abs=0.1)
    again = run(synthetic(rates), Constant(), how, sizes=LONG)
    assert again.tokens == text.tokens
    assert again.stats.accept_per_pos == stats.accept_per_pos
    other = replace(how, sampling=replace(GREEDY, seed=1))
    assert run(synthetic(rates), Constant(), other, sizes=LONG).tokens != text.tokens


@pytest.mark.parametrize("hybrid", [False, True])
def test_the_targets_own_tokens_follow_from_all_before(hybrid: bool) -> None:
    """So the state is that of the text, of what was accepted by coin too."""
    engine = make_engine(drafter=Constant(), acceptance=synthetic((0.7, 0.5)), hybrid=hybrid)
    text = engine.add(PROMPT, FOREVER)
    own = [event.source == TARGET for event in drain(engine)]
    assert 5 < sum(own) < len(own)
    for n, is_own in enumerate(own, text.n_prompt):
        logits = next_logits(text.tokens[:n], hybrid=hybrid)
        logits[END] = -np.inf
        assert text.tokens[n] == (logits.argmax() if is_own else 7)


def test_the_coins_are_those_of_the_request() -> None:
    """Not those of the batch: alone or among others, the same tokens."""
    acceptance = synthetic(rates_for_length(2.5, 4))
    alone = run(acceptance, Constant(), FOREVER)
    engine = make_engine(drafter=Constant(), acceptance=acceptance)
    texts = [engine.add(prompt, FOREVER) for prompt in ([1, 2], PROMPT, [3])]
    drain(engine)
    assert texts[1].tokens == alone.tokens


def test_an_end_is_never_accepted() -> None:
    text = run(synthetic((1.0,) * 4), Constant(END), replace(FOREVER, ignore_eos=False))
    assert text.stats.draft_n_accepted == 0
    assert text.stop_reason == EOS or END not in made(text)


def test_c15_what_holds_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pick per step, for the token that follows the draft."""
    n_picks, pick = 0, EngineSequence.pick

    def counting(self: EngineSequence, *args: Any) -> int:
        nonlocal n_picks
        n_picks += 1
        return pick(self, *args)

    monkeypatch.setattr(EngineSequence, "pick", counting)
    text = run(synthetic((0.9, 0.8, 0.7, 0.6)), Constant(), FOREVER)
    assert n_picks == text.stats.steps < text.stats.predicted_n


def test_places_without_a_rate_do_not_hold() -> None:
    text = run(synthetic((1.0, 1.0)), Constant(), FOREVER)
    assert text.stats.accept_per_pos[2:] == [0, 0]
    assert text.stats.accept_rates[:2] == [1.0, 1.0]


def test_a_grammar_is_refused() -> None:
    pytest.importorskip("llguidance")
    engine = make_engine(acceptance=synthetic((1.0,)))
    with pytest.raises(ConfigError, match=r"no grammar has seen.*leave out") as caught:
        engine.add(PROMPT, params(grammar='root ::= "a"'))
    assert "\n" not in str(caught.value)
    assert not engine.has_work


def test_samplers_with_a_state_go_on() -> None:
    for sampling in (SamplingParams(mirostat=2), SamplingParams(dry_multiplier=1.0)):
        how = GenerateParams(sampling, max_tokens=20, ignore_eos=True)
        text = run(synthetic((0.5, 0.5)), Constant(), how)
        assert text.stats.predicted_n == 20
