"""Top-k, top-p and temperature against naive loops, with their ties and edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.sampling.params import SamplingParams
from specdec.core.sampling.transforms import (
    DEFAULT_ORDER,
    TRANSFORMS,
    Candidates,
    apply,
    from_logits,
    temperature,
    top_k,
    top_p,
)

# Few distinct values, so that ties are common.
COARSE = st.lists(st.integers(-6, 6).map(lambda n: n / 2), min_size=1, max_size=60)
FINE = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60)
LOGITS = COARSE | FINE


def candidates_of(logits: list[float]) -> Candidates:
    return from_logits(np.array(logits, dtype=np.float32))


def naive_order(logits: list[float]) -> list[int]:
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def naive_top_p(logits: list[float], p: float) -> list[int]:
    order = naive_order(logits)
    best = logits[order[0]]
    weights = [math.exp(logits[token] - best) for token in order]
    total, reached, kept = math.fsum(weights), 0.0, []
    for token, weight in zip(order, weights, strict=True):
        kept.append(token)
        reached += weight
        if reached >= p * total:
            break
    return sorted(kept)


@given(LOGITS, st.integers(1, 70))
def test_top_k_keeps_the_k_best_and_breaks_ties_by_id(logits: list[float], k: int) -> None:
    kept = top_k(candidates_of(logits), k)
    assert kept.ids.tolist() == sorted(naive_order(logits)[:k])
    assert kept.logits.tolist() == [np.float32(logits[token]) for token in kept.ids]


# Probabilities that no sum of these weights can hit exactly: there the last bit decides.
@given(LOGITS, st.sampled_from([1e-300, 0.0317, 0.3183098861, 0.61803398875, 0.95, 0.9990123]))
def test_top_p_keeps_the_fewest_that_reach_p(logits: list[float], p: float) -> None:
    assert top_p(candidates_of(logits), p).ids.tolist() == naive_top_p(
        [float(np.float32(logit)) for logit in logits], p
    )


@pytest.mark.parametrize("p", [0.001, 0.9, 0.9999, 0.99999999])
def test_top_p_of_a_large_vocabulary_matches_the_naive_loop(p: float) -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, 30_000).astype(np.float32)
    kept = top_p(from_logits(logits), p)
    assert kept.ids.tolist() == naive_top_p(logits.tolist(), p)


def test_top_p_counts_the_token_that_crosses_the_line() -> None:
    halves = candidates_of([math.log(0.5), math.log(0.3), math.log(0.2)])
    assert top_p(halves, 0.4).ids.tolist() == [0]
    assert top_p(halves, 0.6).ids.tolist() == [0, 1]
    assert top_p(halves, 0.9).ids.tolist() == [0, 1, 2]


def test_equal_logits_leave_by_id() -> None:
    assert top_k(candidates_of([1.0] * 9), 4).ids.tolist() == [0, 1, 2, 3]
    assert top_p(candidates_of([1.0] * 10), 0.35).ids.tolist() == [0, 1, 2, 3]
    assert top_k(candidates_of([0.0, -0.0, 0.0]), 2).ids.tolist() == [0, 1]


@given(LOGITS)
def test_off_means_untouched(logits: list[float]) -> None:
    before = candidates_of(logits)
    assert top_k(before, 0) is before
    assert top_k(before, 10**9) is before
    assert top_p(before, 1.0) is before


@given(LOGITS, st.integers(0, 70), st.floats(1e-300, 1.0), st.floats(1e-300, 1e300))
def test_one_candidate_always_stays_and_stays_finite(
    logits: list[float], k: int, p: float, heat: float
) -> None:
    kept = apply(candidates_of(logits), SamplingParams(temperature=heat, top_k=k, top_p=p))
    assert kept.ids.size >= 1
    assert naive_order(logits)[0] in kept.ids
    assert np.isfinite(kept.logits).all()
    assert (np.diff(kept.ids) > 0).all()


@given(FINE, st.floats(0.05, 20.0))
def test_temperature_is_a_division(logits: list[float], heat: float) -> None:
    before = candidates_of(logits)
    assert temperature(before, heat).logits.tolist() == [x / heat for x in before.logits]


def test_a_tiny_temperature_leaves_no_chance_to_the_others() -> None:
    extreme = float(np.finfo(np.float32).max)
    for logits in ([1.0, 1.001, 0.0], [-extreme, extreme, 0.0]):
        scaled = temperature(candidates_of(logits), 5e-324).logits
        assert np.isfinite(scaled).all()
        assert scaled[1] - np.delete(scaled, 1).max() > 1e6


def test_masked_tokens_never_become_candidates() -> None:
    candidates = candidates_of([-math.inf, 1.0, -math.inf, -50.0])
    assert candidates.ids.tolist() == [1, 3]


def test_filters_see_probabilities_at_temperature_one() -> None:
    """llama.cpp's order: a high temperature must not let more tokens through top-p."""
    hot = SamplingParams(temperature=100.0, top_k=0, top_p=0.5)
    assert apply(candidates_of([5.0, 1.0, 0.0, 0.0]), hot).ids.tolist() == [0]
    assert DEFAULT_ORDER == ("top_k", "top_p", "temperature")


def test_every_ordered_transform_exists() -> None:
    assert set(DEFAULT_ORDER) == set(TRANSFORMS)


def test_transforms_do_not_write_into_their_input() -> None:
    logits = np.random.default_rng(1).normal(size=500).astype(np.float32)
    copy = logits.copy()
    logits.flags.writeable = False
    apply(from_logits(logits), SamplingParams())
    assert (logits == copy).all()
