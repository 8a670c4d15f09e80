"""Acceptance by p/q in the engine: another text, with the law of plain decoding.

The law of the first tokens is computed from the definition, and compared with what thousands of
seeds give. The same comparison has to notice when the rule, or a drafter, is wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from support import distributions as expected
from support.scripted import (
    GREEDY,
    N_VOCAB,
    PROMPT,
    Oracle,
    drain,
    made,
    make_engine,
    next_logits,
)

from nextn.core.engine import verify
from nextn.core.errors import ConfigError
from nextn.core.generation import TARGET, GenerateParams
from nextn.core.sampling.distribution import Distribution, residual
from nextn.core.sampling.noise import DRAFT_TOKEN, PICK_TOKEN
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.acceptance import Acceptance
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.interface import Speculator

RATIO = Acceptance("ratio")
N_RUNS, N_TOKENS = 1200, 3
# Three candidates at each position, none of them sure.
THREE = SamplingParams(temperature=0.35, top_k=3, top_p=1.0, min_p=0.0)
Opinion = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def opposite(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return -logits


def shifted(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Some candidates are the target's, in another order."""
    best = np.argsort(-logits)[:4]
    logits = logits.copy()
    logits[best] = logits[best[[2, 0, 3, 1]]]
    return logits


def alike(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return logits + np.where(np.arange(N_VOCAB) % 2, np.float32(0.2), np.float32(-0.1))


class Drawing(Speculator):
    """Draws its tokens from laws of its own, as a model that samples its drafts does."""

    def __init__(
        self,
        opinion: Opinion,
        *,
        length: int = N_TOKENS,
        purpose: int = DRAFT_TOKEN,
        is_sure: bool = False,
        is_told: bool = True,
        least: float = 0.0,
    ) -> None:
        """`is_sure`: always its best token, as a law of one. `least`: offer only tokens that
        it thinks so likely, which is against the rule."""
        self.opinion, self.length, self.purpose = opinion, length, purpose
        self.is_sure, self.is_told, self.least = is_sure, is_told, least

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: DraftRequest) -> Draft:
        sampler, text, draft = ask.sampler.copy(), list(ask.tokens), Draft()
        for _ in range(min(self.length, ask.max_draft)):
            logits = self.opinion(next_logits(text, hybrid=False)).astype(np.float32)
            distribution = sampler.distribution(logits, text, len(text))
            if self.is_sure:
                best = int(distribution.ids[distribution.probabilities.argmax()])
                distribution = Distribution(np.array([best]), np.ones(1))
            token = sampler.draw(distribution, len(text), self.purpose)
            if distribution(token) < self.least:
                break
            draft.tokens.append(token)
            draft.sources.append("drawing")
            if self.is_told:
                draft.distributions.append(distribution)
            sampler.accept(token)
            text.append(token)
        return draft


def surprise(drafter: Speculator, sampling: SamplingParams = THREE, n_runs: int = N_RUNS) -> float:
    how = GenerateParams(sampling, max_tokens=N_TOKENS)
    engine = make_engine(drafter=drafter, acceptance=RATIO)
    seeds = range(n_runs)
    texts = [
        engine.add(PROMPT, replace(how, sampling=replace(sampling, seed=seed))) for seed in seeds
    ]
    drain(engine)
    found = Counter(tuple(made(text)) for text in texts)
    logits_after = partial(next_logits, hybrid=False)
    return expected.surprise(found, expected.law_of_texts(PROMPT, N_TOKENS, sampling, logits_after))


DRAFTERS: dict[str, Callable[[], Speculator]] = {
    "none": lambda: Oracle(),
    "the same law": lambda: Drawing(lambda logits: logits),
    "nearly the same": lambda: Drawing(alike),
    "overlapping": lambda: Drawing(shifted),
    "disjoint": lambda: Drawing(opposite),
    "short drafts": lambda: Drawing(shifted, length=1),
    "two tokens": lambda: Drawing(alike, length=2),
    "a law of one token": lambda: Drawing(shifted, is_sure=True),
    "certain tokens": lambda: Drawing(shifted, is_sure=True, is_told=False),
    "drawn with the noise of picks": lambda: Drawing(shifted, purpose=PICK_TOKEN),
    "drawn, and not told": lambda: Drawing(alike, is_told=False),
    "not told, with the noise of picks": lambda: Drawing(alike, is_told=False, purpose=PICK_TOKEN),
    "not told, likely ones only": lambda: Drawing(
        alike, is_told=False, purpose=PICK_TOKEN, least=0.3
    ),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_law_of_the_text(name: str) -> None:
    assert surprise(DRAFTERS[name]()) < 4


@pytest.mark.parametrize(
    "sampling",
    [
        replace(THREE, repeat_penalty=1.2, presence_penalty=0.5),
        replace(THREE, top_k=4, xtc_probability=0.0, min_p=0.15),
        replace(THREE, top_k=5, top_p=0.9, logit_bias=((3, 1.0), (7, -math.inf))),
    ],
)
@pytest.mark.slow
def test_after_all_transforms(sampling: SamplingParams) -> None:
    assert surprise(Drawing(alike), sampling) < 4


@pytest.mark.slow
def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unscaled(target: Distribution, drafter: Distribution | None, token: int) -> Distribution:
        """Not normalised, and drawn from as if it were: what is missing goes to the last one."""
        left = residual(target, drafter, token)
        shares = left.probabilities.copy()
        if drafter is not None and shares.size > 1:
            shares = np.array([target(t) - drafter(t) for t in left.ids.tolist()])
            shares[-1] = 1 - shares[:-1].sum()
        return Distribution(left.ids, shares)

    wrong = {
        "chance": [lambda p, q, token: 1.0, lambda p, q, token: p(token)],
        "residual": [lambda p, q, token: p, unscaled],
    }
    assert surprise(Drawing(shifted)) < 4
    for name, rules in wrong.items():
        for rule in rules:
            with monkeypatch.context() as patch:
                patch.setattr(verify, name, rule)
                assert surprise(Drawing(shifted)) > 8, (name, rules.index(rule))


def test_a_drafter_that_chooses_among_its_draws_is_noticed() -> None:
    """What the interface forbids: offering a token because of which one was drawn."""
    assert surprise(Drawing(shifted, least=0.3)) > 8


def test_told_laws_raise_acceptance() -> None:
    def accepted(drafter: Speculator) -> float:
        engine = make_engine(drafter=drafter, acceptance=RATIO)
        texts = [engine.add(PROMPT, params_of(seed)) for seed in range(100)]
        drain(engine)
        drafted = sum(text.stats.draft_n for text in texts)
        return sum(text.stats.draft_n_accepted for text in texts) / drafted

    def params_of(seed: int) -> GenerateParams:
        return GenerateParams(replace(THREE, seed=seed), max_tokens=20, ignore_eos=True)

    same, untold = accepted(Drawing(lambda x: x)), accepted(Drawing(lambda x: x, is_told=False))
    assert same == 1.0
    assert untold < 0.8


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("wrong", range(5))
def test_at_temperature_0_it_is_plain_decoding(wrong: int, hybrid: bool) -> None:
    for sampling in (GREEDY, replace(GREEDY, repeat_penalty=1.3), replace(GREEDY, mirostat=2)):
        how = GenerateParams(sampling, max_tokens=20, logprobs=1)
        plain = make_engine(hybrid=hybrid)
        sequence = plain.add(PROMPT, how)
        want = drain(plain)
        oracle = Oracle(lambda _n, place: int(place == wrong))
        engine = make_engine(hybrid=hybrid, drafter=oracle, acceptance=RATIO)
        engine.add(PROMPT, how)
        oracle.texts[0] = sequence.tokens
        assert [event._replace(source=TARGET) for event in drain(engine)] == want


def test_the_same_seed_and_drafts_repeat() -> None:
    def write(seed: int) -> list[int]:
        engine = make_engine(drafter=Drawing(alike), acceptance=RATIO)
        how = GenerateParams(SamplingParams(seed=seed), max_tokens=25, ignore_eos=True)
        sequence = engine.add(PROMPT, how)
        drain(engine)
        return made(sequence)

    assert write(5) == write(5) != write(6)


def test_what_a_text_says_and_counts() -> None:
    engine = make_engine(drafter=Drawing(alike), acceptance=RATIO)
    how = GenerateParams(THREE, max_tokens=25, ignore_eos=True, logprobs=1)
    texts = [engine.add([*PROMPT, i], how) for i in range(3)]
    events = drain(engine)
    for text in texts:
        stats = text.stats
        own = [event for event in events if event.sequence == text.id]
        assert stats.draft_n_accepted == sum(event.source == "drawing" for event in own)
        assert stats.by_source["drawing"].accepted == sum(stats.accept_per_pos)
        assert stats.predicted_n == stats.steps + stats.draft_n_accepted == 25
        assert stats.as_json()["accept_mode"] == "ratio"
        for n, event in enumerate(own):
            logits = next_logits(text.tokens[: text.n_prompt + n], hybrid=False).astype(float)
            total = math.log(np.exp(logits - logits.max()).sum()) + logits.max()
            assert event.logprob == pytest.approx(logits[event.token] - total)


def test_grammar_and_bans_hold() -> None:
    pytest.importorskip("llguidance")
    oracle, n_accepted = Oracle(), 0
    engine = make_engine(drafter=oracle, acceptance=RATIO)
    sampling = replace(THREE, temperature=2.0, top_k=0, logit_bias=((1, -math.inf),))
    how = GenerateParams(sampling, max_tokens=30, grammar='root ::= "a" [a-f]+ "z"')
    for seed in range(20):
        text = engine.add(PROMPT, replace(how, sampling=replace(sampling, seed=seed)))
        oracle.texts[text.id] = [*PROMPT, *([0, 2, 3, 1, 25, 60] * 9)]
        events = drain(engine)
        written = "".join(event.text for event in events)
        assert written.startswith("a")
        assert set(written[:-1]) <= set("abcdef")
        assert 1 not in made(text)
        n_accepted += text.stats.draft_n_accepted
    assert n_accepted > 0


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(mirostat=2),
        SamplingParams(adaptive_target=0.5, samplers=("top_k", "adaptive_p")),
    ],
)
def test_samplers_without_a_law_are_refused(sampling: SamplingParams) -> None:
    engine = make_engine(acceptance=RATIO)
    with pytest.raises(ConfigError, match=r"spec-accept ratio needs.*mirostat"):
        engine.add(PROMPT, GenerateParams(sampling))
    assert not engine.has_work
