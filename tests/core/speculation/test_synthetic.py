"""Synthetic acceptance: rates by length, chances by rates, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.errors import ConfigError
from nextn.core.speculation import options as names
from nextn.core.speculation.acceptance import Acceptance
from nextn.core.speculation.options import SpecOptions
from nextn.core.speculation.synthetic import chances_of, check_rates, rates_for_length


@pytest.mark.parametrize(
    ("length", "n_places", "p"),
    [(2.5, 3, 0.691413980), (3, 8, 0.676567689), (5, 16, 0.805007600)],
)
def test_published_vectors(length: float, n_places: int, p: float) -> None:
    rates = rates_for_length(length, n_places)
    assert len(rates) == n_places
    assert rates[0] == pytest.approx(p, abs=1e-9)
    assert rates == pytest.approx([p**i for i in range(1, n_places + 1)], abs=1e-8)


def test_the_rates_of_the_first_vector() -> None:
    assert rates_for_length(2.5, 3) == pytest.approx([0.691414, 0.478053, 0.330533], abs=1e-6)


@given(st.integers(1, 64), st.floats(0, 1))
def test_a_step_makes_the_length(n_places: int, share: float) -> None:
    length = 1 + share * n_places
    rates = rates_for_length(length, n_places)
    assert 1 + math.fsum(rates) == pytest.approx(length, abs=1e-6)
    check_rates(rates, n_places)


def test_the_ends_are_exact() -> None:
    assert rates_for_length(1, 4) == (0, 0, 0, 0)
    assert rates_for_length(5, 4) == (1, 1, 1, 1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).map(lambda r: sorted(r, reverse=True)))
def test_chances_multiply_to_the_rates(rates: list[float]) -> None:
    reached = 1.0
    for rate, chance in zip(rates, chances_of(rates), strict=True):
        assert 0 <= chance <= 1
        reached *= chance
        assert reached == pytest.approx(rate)


def test_after_an_impossible_place_nothing_follows() -> None:
    assert chances_of((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"synth_len": 0.99}, "at least 1"),
        ({"synth_len": math.nan}, "at least 1"),
        ({"synth_len": math.inf}, "at least 1"),
        ({"synth_len": 2.0, "synth_rates": (0.5,)}, "exclude each other"),
        ({"synth_rates": (0.5, 0.6)}, "must not rise.*0.6 at place 2 follows 0.5"),
        ({"synth_rates": (1.1,)}, "1.1 at place 1 is no probability"),
        ({"synth_rates": (0.5, -0.1)}, "-0.1 at place 2 is no probability"),
        ({"synth_rates": (math.nan,)}, "no probability"),
        ({"synth_len": 2.0, "accept": "ratio"}, "ratio and synthetic.*exclude"),
        ({"synth_rates": (0.5,), "accept": "relaxed"}, "relaxed and synthetic.*exclude"),
    ],
)
def test_refused_at_once(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SpecOptions(types=("mtp",), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "types", "said"),
    [
        (SpecOptions(synth_len=4.1, draft_n_max=3), ("mtp",), "4.1, but.*3 tokens make at most 4"),
        (SpecOptions(synth_len=2.0), (), "needs drafts"),
        (SpecOptions(synth_rates=(0.5,), draft_n_max=2), ("mtp",), "needs 2 rates.*got 1"),
        (SpecOptions(synth_rates=(0.5,)), (), "needs drafts"),
    ],
)
def test_refused_once_the_drafters_are_known(
    options: SpecOptions, types: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        options.acceptance(types)


def test_what_the_options_become() -> None:
    options = SpecOptions(synth_rates=(0.8, 0.4, 0.1), draft_n_max=3)
    chosen = options.acceptance(("mtp",))
    assert chosen.mode == "synthetic"
    assert chosen.chances == pytest.approx((0.8, 0.5, 0.25))
    assert "not what the model would write" in chosen.warning
    assert SpecOptions().acceptance(("mtp",)) == Acceptance()
    assert Acceptance().warning == ""


@pytest.mark.parametrize(
    ("types", "longest"),
    [
        ((), 0),
        ((names.MTP,), 3),
        ((names.NGRAM_MOD,), 64),
        ((names.NGRAM_SIMPLE, names.MTP), 48),
        ((names.NGRAM_CACHE,), 8),
        ((names.SUFFIX,), 64),
    ],
)
def test_the_longest_draft(types: tuple[str, ...], longest: int) -> None:
    assert SpecOptions(fixed=True).longest_draft(types) == longest
