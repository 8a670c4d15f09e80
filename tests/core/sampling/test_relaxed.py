"""What relaxed acceptance calls nearly as good, and where a thought begins and ends."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.sampling.candidates import Candidates
from nextn.core.sampling.relaxed import Phase, is_nearly_best

ROWS = st.lists(st.floats(-5, 5), min_size=1, max_size=8)


def candidates(logits: list[float], *, first: int = 10) -> Candidates:
    return Candidates(np.arange(first, first + len(logits)), np.array(logits))


def by_hand(logits: list[float], row: int, top_n: int, delta: float) -> bool:
    total = math.fsum(math.exp(logit) for logit in logits)
    chances = [math.exp(logit) / total for logit in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return row in order[:top_n] and chances[row] >= max(chances) - delta


@given(ROWS, st.integers(0, 9), st.integers(1, 5), st.floats(0.001, 1))
def test_the_rule(logits: list[float], row: int, top_n: int, delta: float) -> None:
    found = is_nearly_best(candidates(logits), 10 + row, top_n, delta)
    if row >= len(logits):
        assert not found
    else:
        near = {by_hand(logits, row, top_n, delta + by) for by in (-1e-9, 1e-9)}
        assert found in near


@given(ROWS)
def test_one_candidate_and_no_slack_leave_the_best(logits: list[float]) -> None:
    best = 10 + int(np.argmax(logits))
    near = [token for token in range(10, 18) if is_nearly_best(candidates(logits), token, 1, 1.0)]
    assert near == [best]


def test_ranked_candidates_too() -> None:
    ranked = Candidates(np.array([7, 3]), np.array([2.0, 1.9]), ranked=True)
    assert is_nearly_best(ranked, 3, 2, 0.1)
    assert not is_nearly_best(ranked, 3, 1, 0.1)
    assert not is_nearly_best(ranked, 3, 2, 0.01)


@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_the_phase(tokens: list[int], looks: list[int]) -> None:
    """Looked at now and then; 1 opens and 2 closes."""
    phase = Phase(1, 2)
    for n in sorted(looks):
        seen = tokens[:n]
        marks = [token for token in seen if token in (1, 2)]
        assert phase.is_open(seen) == (marks[-1:] == [1])


def test_the_phase_reads_each_token_once() -> None:
    class Counting(list[int]):
        n_read = 0

        def __getitem__(self, key: slice) -> list[int]:  # type: ignore[override]
            found = super().__getitem__(key)
            Counting.n_read += len(found)
            return found

    tokens, phase = Counting([0] * 100), Phase(1, 2)
    for _ in range(50):
        phase.is_open(tokens)
        tokens.append(0)
    assert Counting.n_read == 149
