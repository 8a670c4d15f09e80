"""Acceptance by p/q, computed and drawn: the outcome has the target's distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.thoroughness import n_examples

from nextn.core.errors import ConfigError, NonFiniteError
from nextn.core.sampling.candidates import Candidates
from nextn.core.sampling.distribution import (
    Distribution,
    as_candidates,
    chance,
    distribution_of,
    residual,
    without,
)
from nextn.core.sampling.noise import DRAFT_TOKEN, PICK_TOKEN, RESIDUAL
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

N_VOCAB = 9

Chance = Callable[[Distribution, "Distribution | None", int], float]
Residual = Callable[[Distribution, "Distribution | None", int], Distribution]


def make_distribution(shares: dict[int, float]) -> Distribution:
    ids = np.array(sorted(shares), np.int64)
    values = np.array([shares[token] for token in sorted(shares)])
    return Distribution(ids, values / values.sum())


def dense(distribution: Distribution) -> Any:
    row = np.zeros(N_VOCAB)
    row[distribution.ids] = distribution.probabilities
    return row


LAWS = st.dictionaries(
    st.integers(0, N_VOCAB - 1), st.floats(1e-9, 1.0), min_size=1, max_size=N_VOCAB
).map(make_distribution)
POINTS = st.integers(0, N_VOCAB - 1).map(lambda token: make_distribution({token: 1.0}))


def outcome(
    p: Distribution, q: Distribution, chance: Chance = chance, residual: Residual = residual
) -> Any:
    """The distribution of the token that comes out, added up over all that may happen."""
    found = np.zeros(N_VOCAB)
    for token, drawn in zip(q.ids.tolist(), q.probabilities.tolist(), strict=True):
        held = chance(p, q, token)
        found[token] += drawn * held
        if held < 1:
            found += drawn * (1 - held) * dense(residual(p, q, token))
    return found


@given(st.one_of(LAWS, POINTS), st.one_of(LAWS, POINTS))
def test_the_law_is_that_of_the_target(p: Distribution, q: Distribution) -> None:
    assert outcome(p, q) == pytest.approx(dense(p), abs=1e-12)


@given(st.one_of(LAWS, POINTS), st.integers(0, N_VOCAB - 1))
def test_without_a_choice_of_the_drafter(p: Distribution, token: int) -> None:
    held = chance(p, None, token)
    assert held == p(token)
    found = held * np.eye(N_VOCAB)[token]
    if held < 1:
        found += (1 - held) * dense(residual(p, None, token))
    assert found == pytest.approx(dense(p), abs=1e-12)


@given(LAWS, LAWS)
def test_a_token_that_the_law_rules_out_counts_as_certain(p: Distribution, q: Distribution) -> None:
    for token in set(range(N_VOCAB)) - set(q.ids.tolist()):
        assert chance(p, q, token) == chance(p, None, token)
        assert residual(p, q, token).ids.tolist() == residual(p, None, token).ids.tolist()


@given(LAWS, LAWS)
def test_laws_add_up_and_hold_no_zero(p: Distribution, q: Distribution) -> None:
    for token in q.ids.tolist():
        left = residual(p, q, token)
        assert left.probabilities.sum() == pytest.approx(1)
        assert (left.probabilities > 0).all()
        assert (np.diff(left.ids) > 0).all()
        assert set(left.ids.tolist()) <= set(p.ids.tolist())


@given(LAWS)
def test_equal_laws_always_hold(p: Distribution) -> None:
    assert all(chance(p, p, token) == 1 for token in p.ids.tolist())
    assert residual(p, p, int(p.ids[0])).ids.size  # never used, and still not empty


@given(LAWS, st.sets(st.integers(0, N_VOCAB - 1)))
def test_without_some_tokens(distribution: Distribution, tokens: set[int]) -> None:
    left = without(distribution, tokens)
    others = [token for token in distribution.ids.tolist() if token not in tokens]
    if left is None:
        assert others == []
    else:
        assert left.ids.tolist() == others
        share = sum(distribution(token) for token in others)
        kept = [distribution(token) for token in others]
        assert [left(token) * share for token in others] == pytest.approx(kept)


WRONG: dict[str, tuple[Chance, Residual]] = {
    "everything holds": (lambda p, q, token: 1.0, residual),
    "nothing is taken away": (chance, lambda p, q, token: p),
    "the token is taken away instead of the distribution": (
        chance,
        lambda p, q, token: residual(p, None, token),
    ),
    "q/p": (lambda p, q, token: chance(q or p, p, token), residual),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_seen(name: str) -> None:
    """The comparison of the first test, with rules that are wrong."""
    p, q = make_distribution({0: 5, 1: 3, 2: 1, 4: 1}), make_distribution({0: 2, 1: 6, 3: 2, 4: 1})
    assert outcome(p, q) == pytest.approx(dense(p), abs=1e-12)
    assert outcome(p, q, *WRONG[name]) != pytest.approx(dense(p), abs=0.02)


@given(LAWS, LAWS)
def test_a_law_that_is_not_told_costs_acceptance_only(p: Distribution, q: Distribution) -> None:
    def untold_chance(p: Distribution, _q: Distribution | None, token: int) -> float:
        return chance(p, None, token)

    def untold_residual(p: Distribution, _q: Distribution | None, token: int) -> Distribution:
        return residual(p, None, token)

    assert outcome(p, q, untold_chance, untold_residual) == pytest.approx(dense(p), abs=1e-12)
    assert all(chance(p, None, token) <= chance(p, q, token) for token in q.ids.tolist())


def test_what_is_left_has_to_be_normalised() -> None:
    """A residual whose probabilities do not add up to 1 loses text."""

    def bare(p: Distribution, q: Distribution | None, token: int) -> Distribution:
        left = np.maximum(dense(p) - dense(q or p), 0)
        return Distribution(np.arange(N_VOCAB), left)

    p, q = make_distribution({0: 5, 1: 3, 2: 1, 4: 1}), make_distribution({0: 2, 1: 6, 3: 2, 4: 1})
    assert outcome(p, q, chance, bare).sum() < 0.9


# The distribution of a sampler --------------------------------------------------------------------

LOGITS = np.array([2.0, -1.0, 0.5, 1.5, -np.inf, 0.0, 1.0, 0.7, -3.0], np.float32)
CHAINS = [
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingParams(temperature=0.6, top_k=5, top_p=0.9),
    SamplingParams(temperature=1.3, top_k=4, logit_bias=((0, -1.0), (3, -np.inf))),
    SamplingParams(temperature=1.0, top_k=0, repeat_penalty=1.5, presence_penalty=0.5),
    SamplingParams(temperature=1.0, dynatemp_range=0.5, typical_p=0.8),
    SamplingParams(temperature=0.0),
]


def frequencies(draws: list[int]) -> Any:
    return np.bincount(draws, minlength=N_VOCAB) / len(draws)


@pytest.mark.parametrize("params", CHAINS)
def test_it_is_what_picks_are_drawn_from(params: SamplingParams) -> None:
    picks, distributions = [], []
    for sequence in range(3000):
        sampler = Sampler(params, n_vocab=N_VOCAB, sequence=sequence)
        sampler.begin([0, 3, 3])
        distributions.append(sampler.distribution(LOGITS, (), 3))
        picks.append(sampler.pick(LOGITS, (), 3))
    assert all(
        distribution.ids.tolist() == distributions[0].ids.tolist() for distribution in distributions
    )
    assert frequencies(picks) == pytest.approx(dense(distributions[0]), abs=0.03)
    assert set(picks) <= set(distributions[0].ids.tolist())


@pytest.mark.parametrize(
    "params",
    [
        *CHAINS,
        SamplingParams(temperature=0.9, mirostat=2, mirostat_tau=1.2, mirostat_eta=0.5),
        SamplingParams(temperature=0.9, samplers=("top_k", "adaptive_p"), adaptive_target=0.2),
    ],
)
@pytest.mark.slow
def test_the_law_of_now_is_what_picks_are_drawn_from(params: SamplingParams) -> None:
    """Steering included, behind tokens that have moved it."""
    picks, distributions = [], []
    for sequence in range(3000):
        sampler = Sampler(replace(params, seed=9), n_vocab=N_VOCAB, sequence=sequence)
        sampler.begin([0, 3])
        for _ in range(2):
            sampler.pick(LOGITS[::-1], (), 2)
            sampler.accept(0)
        distributions.append(dense(sampler.distribution_now(LOGITS, (), 4)))
        picks.append(sampler.pick(LOGITS, (), 4))
        assert distributions[-1][picks[-1]] > 0
        assert (
            dense(sampler.distribution_now(LOGITS, (), 4)) == distributions[-1]
        ).all()  # it has moved nothing
    assert frequencies(picks) == pytest.approx(np.mean(distributions, axis=0), abs=0.03)


@settings(max_examples=n_examples(20))
@given(LAWS, st.sampled_from([PICK_TOKEN, RESIDUAL, DRAFT_TOKEN]))
def test_draws_have_the_law(distribution: Distribution, purpose: int) -> None:
    sampler = Sampler(SamplingParams(seed=5), n_vocab=N_VOCAB)
    draws = [sampler.draw(distribution, position, purpose) for position in range(1500)]
    assert frequencies(draws) == pytest.approx(dense(distribution), abs=0.06)


def test_purposes_do_not_share_noise() -> None:
    sampler = Sampler(SamplingParams(seed=5), n_vocab=N_VOCAB)
    distribution = make_distribution(dict.fromkeys(range(N_VOCAB), 1.0))
    drawn = [
        [sampler.draw(distribution, position, purpose) for position in range(900)]
        for purpose in (PICK_TOKEN, RESIDUAL, DRAFT_TOKEN)
    ]
    for i in range(3):
        same = sum(a == b for a, b in zip(drawn[i], drawn[i - 1], strict=True))
        assert 60 < same < 150  # 100 of 900 by chance


def test_a_draw_from_the_law_of_a_pick_is_the_pick() -> None:
    for seed in range(200):
        sampler = Sampler(SamplingParams(seed=seed), n_vocab=N_VOCAB)
        distribution = sampler.distribution(LOGITS, (), 7)
        assert sampler.draw(distribution, 7, PICK_TOKEN) == sampler.pick(LOGITS, (), 7)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(mirostat=2),
        SamplingParams(adaptive_target=0.5, samplers=("top_k", "adaptive_p")),
    ],
)
def test_samplers_that_steer_have_none(params: SamplingParams) -> None:
    sampler = Sampler(params, n_vocab=N_VOCAB)
    assert not sampler.has_distribution
    with pytest.raises(ConfigError, match="mirostat and adaptive-p"):
        sampler.distribution(LOGITS)


def test_broken_logits_have_none() -> None:
    with pytest.raises(NonFiniteError):
        Sampler(SamplingParams(), n_vocab=N_VOCAB).distribution(LOGITS * np.float32("nan"))


def test_candidates_and_back() -> None:
    distribution = distribution_of(
        Candidates(np.array([5, 2, 7]), np.array([3.0, 1.0, 0.5]), ranked=True)
    )
    assert distribution.ids.tolist() == [2, 5, 7]
    again = distribution_of(as_candidates(distribution))
    assert again.probabilities == pytest.approx(distribution.probabilities)


def test_what_cannot_come_is_no_part_of_it() -> None:
    distribution = distribution_of(Candidates(np.array([1, 2]), np.array([0.0, 1000.0])))
    assert distribution.ids.tolist() == [2]
    assert distribution.probabilities.tolist() == [1.0]


@pytest.mark.parametrize("params", CHAINS)
def test_what_is_allowed_before_filters(params: SamplingParams) -> None:
    sampler = Sampler(params, n_vocab=N_VOCAB)
    sampler.begin([0, 3, 3])
    allowed = sampler.allowed(LOGITS, (), 3)
    banned = {token for token, bias in params.logit_bias if bias == -np.inf}
    assert set(allowed.ids.tolist()) == set(range(N_VOCAB)) - {4} - banned


@pytest.mark.parametrize("params", CHAINS)
def test_block_maxima_change_no_law(params: SamplingParams) -> None:
    logits = np.random.default_rng(4).normal(0, 3, 64 * 300).astype(np.float32)
    maxima = logits.reshape(-1, 64).max(axis=1)
    sampler = Sampler(params, n_vocab=logits.size)
    sampler.begin([0, 3, 3])
    plain, quick = sampler.distribution(logits, (), 3), sampler.distribution(logits, (), 3, maxima)
    assert plain.ids.tolist() == quick.ids.tolist()
    assert plain.probabilities.tolist() == quick.probabilities.tolist()
