"""The best of a row, found quickly, are those that sorting finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.sampling.candidates import (
    Candidates,
    best_from_logits,
    best_rows,
    by_id,
    deviation,
    from_logits,
    rank,
    rows_of,
    total_weight,
)

SIZES = [1, 2, 255, 256, 1023, 1024, 1025, 4096, 16_383, 16_384, 16_385, 17_407, 40_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n_values", [1, 2, 50, 10**9])
def test_best_rows_are_those_of_a_stable_sort(size: int, n_values: int) -> None:
    rng = np.random.default_rng([size, n_values])
    values = rng.integers(0, n_values, size).astype(np.float32)
    order = np.argsort(-values.astype(np.float64), kind="stable")
    for count in (1, 2, 40, 63, 64, 65, 256, 257, 5000, size):
        np.testing.assert_array_equal(best_rows(values, count), order[:count])
        np.testing.assert_array_equal(best_rows(values.astype(np.float64), count), order[:count])


@given(st.lists(st.sampled_from([-math.inf, -1.5, 0.0, 0.5, 2.0]), min_size=1, max_size=50))
def test_masked_tokens_never_become_candidates(logits: list[float]) -> None:
    row = np.array(logits, np.float32)
    alive = [token for token, logit in enumerate(logits) if logit > -math.inf]
    assert from_logits(row).ids.tolist() == alive
    for count in (1, 3, len(logits)):
        best = best_from_logits(row, count)
        assert best.ids.tolist() == sorted(alive, key=lambda token: (-logits[token], token))[:count]
        assert best.ranked


def test_masks_in_a_long_row() -> None:
    row = np.full(40_000, -np.inf, np.float32)
    row[[7, 39_999, 20_000]] = [1.0, 3.0, 1.0]
    assert best_from_logits(row, 40).ids.tolist() == [39_999, 7, 20_000]


def test_widening_is_exact() -> None:
    row = np.random.default_rng(0).normal(0, 9, 3000).astype(np.float32)
    assert (from_logits(row).logits == row).all()
    best = best_from_logits(row, 7)
    assert (best.logits == row[best.ids]).all()


@given(st.lists(st.integers(0, 30), unique=True), st.booleans())
def test_rows_of_finds_tokens(tokens: list[int], ranked: bool) -> None:
    logits = np.array([(7 * token) % 11 for token in range(0, 30, 2)], np.float64)
    candidates = Candidates(np.arange(0, 30, 2), logits)
    candidates = by_id(rank(candidates)) if ranked else candidates
    rows, found = rows_of(candidates, np.array(tokens, np.int64))
    there = [token for token in tokens if token < 30 and token % 2 == 0]
    assert candidates.ids[rows].tolist() == there
    assert [token for token, is_found in zip(tokens, found, strict=True) if is_found] == there


@pytest.mark.parametrize("size", [1, 100, 16_384, 50_001])
def test_sums_in_parts(size: int) -> None:
    logits = np.random.default_rng(size).normal(3, 2, size)
    weights = np.exp(logits - logits.max())
    assert total_weight(logits, logits.max()) == pytest.approx(math.fsum(weights), rel=1e-13)
    assert deviation(logits) == pytest.approx(logits.std(), rel=1e-12)
