"""Mirostat 2 and adaptive-p: the formulas, and that they reach what they aim at."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.sampling.adaptive import AdaptiveP, Mirostat
from nextn.core.sampling.candidates import from_logits
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

from . import naive

FINE = st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=40, unique=True)


@given(FINE, st.floats(-1.0, 12.0))
def test_mirostat_keeps_what_is_no_more_surprising_than_mu(logits: list[float], mu: float) -> None:
    candidates = from_logits(np.array(logits, np.float32))
    ranked = naive.rank(list(enumerate(logits)))
    chances = naive.probabilities(ranked)
    kept = [pair for pair, p in zip(ranked, chances, strict=True) if -math.log2(p) <= mu]
    if any(abs(-math.log2(p) - mu) < 1e-9 for p in chances):
        return  # the last bit decides
    left = Mirostat(5.0, 0.1, mu).narrow(candidates)
    assert left.ids.tolist() == sorted(token for token, _ in kept or ranked[:1])


@given(FINE)
def test_mirostat_moves_by_the_surprise_among_those_left(logits: list[float]) -> None:
    candidates = from_logits(np.array(logits, np.float32))
    state = Mirostat(3.0, 0.25, 6.0)
    chances = dict(
        zip(range(len(logits)), naive.probabilities(list(enumerate(logits))), strict=True)
    )
    for row, token in enumerate(candidates.ids.tolist()):
        probability = state.probability(candidates, row)
        assert probability == pytest.approx(chances[token], rel=1e-9)
        after = state.after(probability)
        assert after.mu == pytest.approx(6.0 - 0.25 * (-math.log2(probability) - 3.0))


def test_mirostat_survives_an_impossible_token() -> None:
    assert math.isfinite(Mirostat(5.0, 0.1, 10.0).after(0.0).mu)


@given(FINE, st.floats(0, 1), st.floats(0, 0.99), st.floats(0, 1))
def test_adaptive_p_reshapes_by_distance_from_the_target(
    logits: list[float], target: float, decay: float, seen: float
) -> None:
    state = AdaptiveP.start(target, decay).after(seen)
    candidates = from_logits(np.array(logits, np.float32))
    wanted = min(max(2 * target - state.weighted_sum / state.total_weight, 0), 1)
    got = state.reshape(candidates)
    assert got.ids.tolist() == candidates.ids.tolist()
    for logit, p in zip(got.logits, naive.probabilities(list(enumerate(logits))), strict=True):
        away = abs(p - wanted) / 0.3
        assert logit == pytest.approx(5 - 10 * away**2 / (1 + away), abs=1e-9)


def test_adaptive_p_begins_as_if_the_target_had_been_met() -> None:
    state = AdaptiveP.start(0.4, 0.9)
    assert state.weighted_sum / state.total_weight == pytest.approx(0.4)
    after = state.after(1.0)
    assert after.weighted_sum == pytest.approx(1 + 0.9 * state.weighted_sum)
    assert after.total_weight == pytest.approx(1 + 0.9 * state.total_weight)


def write(params: SamplingParams, n: int) -> tuple[list[int], float]:
    """Tokens, and their mean surprise in bits under the model at the temperature."""
    rng = np.random.default_rng(0)
    sampler = Sampler(params, n_vocab=2000)
    tokens: list[int] = []
    bits = 0.0
    for position in range(n):
        logits = rng.normal(0, 2.5, 2000).astype(np.float32)
        token = sampler.pick(logits, tokens, position)
        sampler.accept(token)
        tokens.append(token)
        wide = logits.astype(np.float64)
        bits -= (wide[token] - np.log(np.exp(wide).sum())) / math.log(2)
    return tokens, bits / n


@pytest.mark.parametrize("tau", [3.0, 5.0, 7.0])
def test_mirostat_holds_the_surprise(tau: float) -> None:
    """The controller sees renormalised probabilities, which are less surprising."""
    params = SamplingParams(mirostat=2, mirostat_tau=tau, temperature=1.0, seed=5)
    tokens, bits = write(params, 800)
    assert bits == pytest.approx(tau, abs=2.0)
    assert len(set(tokens)) > 300


def test_mirostat_steers_up_and_down() -> None:
    low, high = (
        write(SamplingParams(mirostat=2, mirostat_tau=tau, temperature=1.0), 400)[1]
        for tau in (2.0, 8.0)
    )
    assert low < high - 2


def test_adaptive_p_reaches_its_target() -> None:
    for target in (0.2, 0.6):
        params = SamplingParams(
            samplers=("adaptive_p",), adaptive_target=target, adaptive_decay=0.9, seed=4
        )
        sampler = Sampler(params, n_vocab=8)
        rng = np.random.default_rng(1)
        seen = []
        for position in range(600):
            logits = rng.normal(0, 1.5, 8).astype(np.float32)
            token = sampler.pick(logits, (), position)
            sampler.accept(token)
            seen.append(naive.probabilities(list(enumerate(logits.tolist())))[token])
        assert np.mean(seen) == pytest.approx(target, abs=0.12)
