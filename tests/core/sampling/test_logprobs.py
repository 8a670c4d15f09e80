"""Log-probabilities: right, finite or refused, and the few are the same as the many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.errors import NonFiniteError
from nextn.core.sampling.logprobs import logprobs, token_logprob, top_logprobs


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40), st.integers(0, 50))
def test_the_best_with_the_bits_of_all(logits: list[float], count: int) -> None:
    row = np.array(logits, np.float32)
    everything = logprobs(row)
    order = sorted(range(row.size), key=lambda token: (-row[token], token))
    wanted = [(token, float(everything[token])) for token in order[:count]]
    assert top_logprobs(row, count) == wanted
    assert [token_logprob(row, token) for token in range(row.size)] == everything.tolist()


def test_a_large_vocabulary_is_summed_in_parts() -> None:
    row = np.random.default_rng(0).normal(0, 4, 50_000).astype(np.float32)
    best = top_logprobs(row, 20)
    exact = float(row.max()) + math.log(math.fsum(np.exp(row.astype(float) - float(row.max()))))
    assert best[0][0] == row.argmax()
    for token, value in best:
        assert value == pytest.approx(float(row[token]) - exact, abs=1e-12)
    np.testing.assert_array_equal([value for _, value in best], np.sort(logprobs(row))[::-1][:20])


def test_rows_do_not_see_each_other() -> None:
    rows = np.random.default_rng(1).normal(0, 4, (3, 2, 100)).astype(np.float32)
    together = logprobs(rows)
    assert together.shape == rows.shape
    np.testing.assert_array_equal(together[2, 1], logprobs(rows[2, 1]))


def test_masked_tokens_come_last() -> None:
    row = np.array([-np.inf, 0.0, -np.inf, 1.0], np.float32)
    assert [token for token, _ in top_logprobs(row, 9)] == [3, 1, 0, 2]
    assert top_logprobs(row, 9)[-1] == (2, -math.inf)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_rows_are_refused(bad: float) -> None:
    row = np.array([0.0, bad], np.float32)
    for call in (
        lambda: logprobs(row),
        lambda: top_logprobs(row, 1),
        lambda: token_logprob(row, 0),
    ):
        with pytest.raises(NonFiniteError):
            call()
