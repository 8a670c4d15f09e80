"""The window counts what it should, and the penalties follow their formula."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.sampling.candidates import Candidates, from_logits, rank
from nextn.core.sampling.penalties import Window, penalties

from . import naive

TOKENS = st.lists(st.integers(0, 12), max_size=200)


def counts_of(window: Window) -> dict[int, int]:
    return dict(zip(window.tokens.tolist(), window.counts.tolist(), strict=True))


@given(TOKENS, st.sampled_from([-1, 0, 1, 2, 7, 64]))
def test_a_window_counts_its_last_tokens(tokens: list[int], size: int) -> None:
    window = Window(size)
    for place, token in enumerate(tokens):
        window.add(token)
        seen = tokens[: place + 1]
        assert counts_of(window) == Counter(seen[-size:] if size > 0 else seen if size else [])


@given(TOKENS, TOKENS, st.sampled_from([-1, 0, 3, 64]))
def test_copies_go_their_own_way(first: list[int], then: list[int], size: int) -> None:
    window, plain = Window(size), Window(size)
    window.extend(first)
    plain.extend(first)
    twin = window.copy()
    twin.extend(then)
    assert counts_of(window) == counts_of(plain)
    plain.extend(then)
    assert counts_of(twin) == counts_of(plain)


@given(TOKENS, TOKENS, st.sampled_from([-1, 0, 3, 64]))
def test_a_loaded_window_goes_on(first: list[int], then: list[int], size: int) -> None:
    window = Window(size)
    window.extend(first)
    loaded = Window.load(size, window.save())
    window.extend(then)
    loaded.extend(then)
    assert counts_of(loaded) == counts_of(window)


def test_many_tokens_make_the_window_grow() -> None:
    window = Window(-1)
    window.extend([*range(1000), *range(500)])
    assert counts_of(window) == {token: 1 + (token < 500) for token in range(1000)}


@given(
    st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=12),
    TOKENS,
    st.floats(0.5, 2),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.booleans(),
)
def test_penalties_follow_the_formula(
    logits: list[float],
    seen: list[int],
    repeat: float,
    presence: float,
    frequency: float,
    is_ranked: bool,
) -> None:
    window = Window(64)
    window.extend(seen)
    before = from_logits(np.array(logits, np.float32))
    before = rank(before) if is_ranked else before
    after = penalties(window, repeat, presence, frequency).apply(before)
    wanted = naive.penalties(list(enumerate(logits)), seen[-64:], repeat, presence, frequency)
    assert after.ids.tolist() == list(range(len(logits)))
    assert after.logits.tolist() == pytest.approx([x for _, x in sorted(wanted)], abs=1e-12)


@pytest.mark.parametrize(
    "given_penalties", [(1e300, 0, 0), (1e-300, 0, 0), (1, 1e308, 1e308), (1, -1e308, -1e308)]
)
def test_absurd_penalties_stay_finite(given_penalties: tuple[float, float, float]) -> None:
    window = Window(-1)
    window.extend([0, 0, 0, 1])
    before = Candidates(np.arange(3), np.array([5.0, -5.0, 0.0]))
    with np.errstate(all="raise"):
        after = penalties(window, *given_penalties).apply(before)
    assert np.isfinite(after.logits).all()
    assert after.ids.tolist() == [0, 1, 2]
