"""The quick draw picks exactly what the frozen noise says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.sampling.candidates import Candidates
from nextn.core.sampling.draw import Place, draw
from nextn.core.sampling.noise import (
    MAX_GUMBEL,
    PICK_TOKEN,
    XTC_COIN,
    coin,
    gumbel,
    random_words,
    to_gumbel,
)

COINS = ["0x1.6e739f2c00000p-3", "0x1.27bee41800000p-4", "0x1.02ab685400000p-3"]
PLACES = st.builds(Place, st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(0, 99_999))


def slow_draw(candidates: Candidates, place: Place) -> int:
    scores = candidates.logits + gumbel(*place, PICK_TOKEN, candidates.ids)
    order = sorted(range(scores.size), key=lambda row: (-scores[row], candidates.ids[row]))
    return order[0]


@given(st.integers(1, 400), st.floats(0.0, 30.0), PLACES)
def test_short_cuts_change_nothing(size: int, spread: float, place: Place) -> None:
    rng = np.random.default_rng(size)
    ids = rng.permutation(150_000)[:size]
    candidates = Candidates(ids, rng.normal(0, spread, size))
    assert draw(candidates, place) == slow_draw(candidates, place)


@pytest.mark.parametrize("spread", [0.01, 3.0, 40.0])
def test_a_whole_vocabulary(spread: float) -> None:
    logits = np.random.default_rng(2).normal(0, spread, 30_000)
    candidates = Candidates(np.arange(30_000), logits)
    for position in range(5):
        place = Place(8, 0, position)
        assert draw(candidates, place) == slow_draw(candidates, place)


def test_near_ties_are_settled_by_the_exact_noise() -> None:
    """Two candidates whose scores differ by the last bit only, either way."""
    ids = np.array([11, 4])
    noise = gumbel(3, 0, 7, PICK_TOKEN, ids)
    for nudge in (-2, -1, 0, 1, 2):
        second = noise[0] - noise[1]
        for _ in range(abs(nudge)):
            second = np.nextafter(second, np.sign(nudge) * np.inf)
        candidates = Candidates(ids, np.array([0.0, second]))
        assert draw(candidates, Place(3, 0, 7)) == slow_draw(candidates, Place(3, 0, 7))


@given(PLACES, st.lists(st.integers(0, 2**31), min_size=1, max_size=96, unique=True))
def test_few_words_come_from_the_same_generator_as_many(place: Place, ids: list[int]) -> None:
    few = np.array(ids)
    many = np.concatenate([few, np.arange(4 * 10**9, 4 * 10**9 + 400, 4)])
    assert (
        random_words(*place, 5, few).tolist() == random_words(*place, 5, many)[: few.size].tolist()
    )


def test_no_noise_is_larger_than_the_bound() -> None:
    largest = to_gumbel(np.array([2**32 - 1], np.uint64))[0]
    assert MAX_GUMBEL - 0.1 < largest < MAX_GUMBEL


def test_coins_are_frozen() -> None:
    """Literal values: a change here changes seeded texts. Do not update them."""
    assert (PICK_TOKEN, XTC_COIN) == (0, 1)
    drawn = [coin(seed, 0, position, XTC_COIN) for seed, position in [(0, 0), (1, 0), (1, 9)]]
    assert [value.hex() for value in drawn] == COINS
    assert coin(1, 2, 9, XTC_COIN) != coin(1, 0, 9, XTC_COIN) != coin(1, 0, 9, PICK_TOKEN)
