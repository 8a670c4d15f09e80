"""Every filter and reshaper against its naive definition, with ties and edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nextn.core.sampling import transforms
from nextn.core.sampling.candidates import Candidates, from_logits, rank
from nextn.core.sampling.transforms import (
    dynamic_temperature,
    min_p,
    temperature,
    top_k,
    top_n_sigma,
    top_p,
    typical,
    xtc,
)

from . import naive

# Few distinct values, so that ties are common.
COARSE = st.lists(st.integers(-6, 6).map(lambda n: n / 2), min_size=1, max_size=60)
FINE = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60)
LOGITS = COARSE | FINE
KEEP = st.integers(0, 70)
# Probabilities that no sum of these weights can hit exactly: there the last bit decides.
CHANCES = st.sampled_from([1e-300, 0.0317, 0.3183098861, 0.61803398875, 0.95, 0.9990123])


def candidates_of(logits: list[float]) -> Candidates:
    return from_logits(np.array(logits, dtype=np.float32))


def ranked_of(logits: list[float]) -> naive.Ranked:
    return naive.rank([(token, float(np.float32(x))) for token, x in enumerate(logits)])


def pairs(candidates: Candidates) -> naive.Ranked:
    listed = list(zip(candidates.ids.tolist(), candidates.logits.tolist(), strict=True))
    if candidates.ranked:
        assert listed == naive.rank(listed)
    else:
        assert (np.diff(candidates.ids) > 0).all()
    return naive.rank(listed)


def check(
    filtered: Callable[[Candidates], Candidates], logits: list[float], wanted: naive.Ranked
) -> None:
    """From both orders in which candidates may come."""
    before = candidates_of(logits)
    assert pairs(filtered(before)) == wanted
    assert pairs(filtered(rank(before))) == wanted


@given(LOGITS, KEEP)
def test_top_k_keeps_the_k_best_and_breaks_ties_by_id(logits: list[float], k: int) -> None:
    check(lambda each: top_k(each, k), logits, naive.top_k(ranked_of(logits), k))


@given(LOGITS, CHANCES, KEEP)
def test_top_p_keeps_the_fewest_that_reach_p(logits: list[float], p: float, keep: int) -> None:
    check(lambda each: top_p(each, p, keep), logits, naive.top_p(ranked_of(logits), p, keep))


@pytest.mark.parametrize("p", [0.001, 0.9, 0.9999, 0.99999999])
@pytest.mark.parametrize("keep", [0, 1000, 20_000])
def test_top_p_of_a_large_vocabulary_matches_the_naive_loop(p: float, keep: int) -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, 30_000).astype(np.float32)
    kept = top_p(from_logits(logits), p, keep)
    assert pairs(kept) == naive.top_p(ranked_of(logits.tolist()), p, keep)


def test_top_p_counts_the_token_that_crosses_the_line() -> None:
    halves = candidates_of([math.log(0.5), math.log(0.3), math.log(0.2)])
    assert top_p(halves, 0.4).ids.tolist() == [0]
    assert top_p(halves, 0.6).ids.tolist() == [0, 1]
    assert top_p(halves, 0.9).ids.tolist() == [0, 1, 2]


@given(LOGITS, CHANCES, KEEP)
def test_min_p_compares_with_the_best(logits: list[float], p: float, keep: int) -> None:
    check(lambda each: min_p(each, p, keep), logits, naive.min_p(ranked_of(logits), p, keep))


@given(FINE, st.floats(0.01, 3.0))
def test_top_n_sigma_measures_in_standard_deviations(logits: list[float], n: float) -> None:
    check(lambda each: top_n_sigma(each, n), logits, naive.top_n_sigma(ranked_of(logits), n))


@given(FINE, CHANCES, KEEP)
def test_typical_goes_by_distance_from_the_entropy(
    logits: list[float], p: float, keep: int
) -> None:
    ranked = ranked_of(logits)
    expected = naive.entropy(ranked)
    chances = naive.probabilities(ranked)
    away = sorted(abs(-math.log(max(chance, 1e-300)) - expected) for chance in chances)
    assume(all(b - a > 1e-9 for a, b in pairwise(away)))
    check(lambda each: typical(each, p, keep), logits, naive.typical(ranked, p, keep))


def test_typical_may_drop_the_best_token() -> None:
    """One sure token among many equal ones says less than they do: entropy is near theirs."""
    kept = typical(candidates_of([3.0] + [0.0] * 50), 0.5)
    assert 0 not in kept.ids


@given(FINE, st.sampled_from([0.0, 0.0317, 0.1, 0.2718, 0.4999]), KEEP)
def test_xtc_leaves_the_least_likely_of_the_top_choices(
    logits: list[float], threshold: float, keep: int
) -> None:
    wanted = naive.xtc(ranked_of(logits), threshold, keep)
    check(lambda each: xtc(each, threshold, keep), logits, wanted)


def test_xtc_needs_two_top_choices() -> None:
    tops = candidates_of([2.0, 2.0, 1.9, -5.0])
    assert xtc(tops, 0.2).ids.tolist() == [2, 3]
    assert xtc(tops, 0.33).ids.tolist() == [1, 2, 3]
    assert xtc(tops, 0.45) is tops
    assert xtc(tops, 0.51) is tops  # two such choices cannot be


def test_equal_logits_leave_by_id() -> None:
    assert top_k(candidates_of([1.0] * 9), 4).ids.tolist() == [0, 1, 2, 3]
    assert top_p(candidates_of([1.0] * 10), 0.35).ids.tolist() == [0, 1, 2, 3]
    assert top_k(candidates_of([0.0, -0.0, 0.0]), 2).ids.tolist() == [0, 1]


@given(LOGITS)
def test_off_means_untouched(logits: list[float]) -> None:
    before = candidates_of(logits)
    for after in (
        top_k(before, 0),
        top_k(before, 10**9),
        top_p(before, 1.0),
        min_p(before, 0.0),
        typical(before, 1.0),
        top_n_sigma(before, 0.0),
        top_n_sigma(before, -1.0),
    ):
        assert after is before


@given(FINE, st.floats(0.05, 20.0))
def test_temperature_is_a_division(logits: list[float], heat: float) -> None:
    before = candidates_of(logits)
    assert temperature(before, heat).logits.tolist() == [x / heat for x in before.logits]


@given(LOGITS)
def test_temperature_zero_leaves_the_best(logits: list[float]) -> None:
    check(lambda each: temperature(each, 0.0), logits, ranked_of(logits)[:1])


def test_a_tiny_temperature_leaves_no_chance_to_the_others() -> None:
    extreme = float(np.finfo(np.float32).max)
    for logits in ([1.0, 1.001, 0.0], [-extreme, extreme, 0.0]):
        scaled = temperature(candidates_of(logits), 5e-324).logits
        assert np.isfinite(scaled).all()
        assert scaled[1] - np.delete(scaled, 1).max() > 1e6


@given(FINE, st.floats(0.1, 2.0), st.floats(0.05, 3.0), st.floats(0.0, 3.0))
def test_dynamic_temperature_follows_the_entropy(
    logits: list[float], heat: float, spread: float, exponent: float
) -> None:
    before = candidates_of(logits)
    got = dynamic_temperature(before, heat, spread, exponent)
    if len(logits) == 1:
        assert got is before
        return
    share = min(max(naive.entropy(ranked_of(logits)) / math.log(len(logits)), 0.0), 1.0)
    low = max(0.0, heat - spread)
    wanted = low + (heat + spread - low) * share**exponent
    if share > 1e-6:  # below, the naive entropy is nothing but rounding
        np.testing.assert_allclose(got.logits, before.logits / wanted, rtol=1e-6, atol=1e-9)
    assert pairs(got)[0][0] == ranked_of(logits)[0][0]


def test_dynamic_temperature_without_a_range_is_the_plain_one() -> None:
    before = candidates_of([1.0, 2.0, 4.0])
    assert dynamic_temperature(before, 0.7, 0.0, 1.0).logits.tolist() == pytest.approx(
        [1 / 0.7, 2 / 0.7, 4 / 0.7], rel=1e-15
    )


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "typical", "top_n_sigma", "xtc"])
@given(LOGITS, st.floats(1e-300, 1.0))
def test_somebody_always_stays(name: str, logits: list[float], value: float) -> None:
    number = 1 + int(value * 70) if name == "top_k" else value
    assert getattr(transforms, name)(candidates_of(logits), number).ids.size >= 1


def test_nothing_writes_into_its_input() -> None:
    logits = np.random.default_rng(1).normal(size=500).astype(np.float32)
    before = from_logits(logits)
    copy = before.logits.copy()
    before.logits.flags.writeable = False
    for after in (top_k(before, 9), top_p(before, 0.5), min_p(before, 0.1), typical(before, 0.4)):
        temperature(xtc(top_n_sigma(after, 2.0), 0.1), 0.5)
    assert (before.logits == copy).all()
