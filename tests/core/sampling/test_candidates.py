"""The best of a row, found quickly, are those that sorting finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.thoroughness import n_examples

from nextn.core.backend.interface import MAXIMA_BLOCK
from nextn.core.errors import NonFiniteError
from nextn.core.sampling.candidates import (
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
from nextn.core.sampling.finite import best_token
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

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


def block_maxima(row: NDArray[np.float32]) -> NDArray[np.float32]:
    padded = np.full(-(-row.size // MAXIMA_BLOCK) * MAXIMA_BLOCK, -np.inf, np.float32)
    padded[: row.size] = row
    return np.asarray(padded.reshape(-1, MAXIMA_BLOCK).max(axis=1))


@settings(max_examples=n_examples(60), deadline=None)
@given(st.integers(1, 9000), st.integers(1, 60), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_known_block_maxima_change_nothing(size: int, count: int, levels: int, seed: int) -> None:
    """Few levels make many ties; some tokens are masked."""
    rng = np.random.default_rng(seed)
    row = rng.integers(0, levels, size).astype(np.float32)
    row[rng.random(size) < 0.2] = -np.inf
    row[rng.integers(size)] = 1.0
    maxima = block_maxima(row)
    assert best_rows(row, count, maxima).tolist() == best_rows(row, count).tolist()
    assert best_token(row, maxima) == best_token(row)
    params = SamplingParams(top_k=count, seed=seed, repeat_penalty=1.2)
    sampler = Sampler(params, n_vocab=size)
    sampler.begin([0, size - 1])
    assert sampler.pick(row, (), 3, maxima) == sampler.pick(row, (), 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_block_maxima_show_broken_rows(bad: float, temperature: float) -> None:
    row = np.zeros(200, np.float32)
    row[150] = bad
    sampler = Sampler(SamplingParams(temperature=temperature), n_vocab=200)
    with pytest.raises(NonFiniteError):
        sampler.pick(row, (), 0, block_maxima(row))
