"""Chances of n-gram drafts, and the length of a key's drafts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.speculation.drafters.ngram_chances import (
    LEVELS,
    EvidenceRates,
    KeyRecord,
    MatchChances,
    agreed_beyond,
    expect,
    n_common,
    prior,
)

short = st.lists(st.integers(0, 1), max_size=12)


@given(short, short)
def test_common_beginning(a: list[int], b: list[int]) -> None:
    n = n_common(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@pytest.mark.parametrize(
    ("n", "level"),
    [(0, 0), (2, 0), (3, 3), (7, 3), (8, 8), (23, 8), (24, 24), (55, 24), (56, 56), (80, 56)],
)
def test_how_far_two_places_agree(n: int, level: int) -> None:
    a, b = [7, *range(100)], [8, *range(100)]
    assert agreed_beyond(a, n + 1, b, n + 1) == level
    assert agreed_beyond(a[1:], n, b[1:], n) == level  # as far as there is text


def test_longer_matches_are_surer() -> None:
    assert [prior(n) for n in range(64)] == sorted(prior(n) for n in range(64))
    assert 0 < prior(1) < prior(64) < 1


@pytest.mark.parametrize("start", LEVELS)
def test_a_draft_is_as_sure_as_the_match_that_it_makes(start: int) -> None:
    chances = MatchChances(6)
    assert chances.of(start, 0) == []
    for i, chance in enumerate(chances.of(start, 64)):
        level = max(level for level in LEVELS if level <= start + i)
        assert chance == chances.of(level, 1)[0]


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.9])
def test_chances_become_what_was_seen(rate: float) -> None:
    rng, chances = random.Random(1), MatchChances(12)
    for _ in range(300):
        n_right = 0
        while n_right < 20 and rng.random() < rate:
            n_right += 1
        chances.learn(0, n_right, failed=n_right < 20)
    assert chances.of(0, 1)[0] == pytest.approx(rate, abs=0.17)


def test_what_the_text_has_not_come_to_counts_for_nothing() -> None:
    chances, fresh = MatchChances(12), MatchChances(12)
    chances.learn(8, 0, failed=False)
    assert chances.of(0, 60) == fresh.of(0, 60)
    chances.learn(8, 16, failed=False)
    assert chances.of(8, 16) > fresh.of(8, 16)
    assert chances.of(24, 40) == fresh.of(24, 40)
    chances.learn(8, 16, failed=True)  # the first token beyond 24 was wrong
    assert chances.of(24, 1) < fresh.of(24, 1)
    assert chances.of(56, 9) == fresh.of(56, 9)


def test_old_times_are_forgotten() -> None:
    chances, rates = MatchChances(12), EvidenceRates(1)
    for was_right in (False, True):
        for _ in range(200):
            chances.learn(0, int(was_right), failed=not was_right)
            rates.learn(0, 0.5, is_right=was_right)
        if not was_right:
            assert chances.of(0, 1)[0] < 0.05
            assert rates.of(0, 0.5) < 0.05
    assert chances.of(0, 1)[0] > 0.9
    assert rates.of(0, 0.5) > 0.9


def test_rates_begin_with_what_is_expected() -> None:
    rates = EvidenceRates(2)
    assert 0.5 < expect(1, 1) < expect(5, 5) < 1
    assert expect(5, 9) < expect(7, 9)
    assert rates.of(0, 0.6) == 0.6
    rates.learn(1, 0.6, is_right=False)
    assert rates.of(1, 0.6) < 0.6 == rates.of(0, 0.6)
    for _ in range(50):
        rates.learn(1, 0.6, is_right=True)
    assert 0.6 < rates.of(1, 0.6) < 1


def test_trust_falls_and_recovers() -> None:
    trust, lengths = KeyRecord(32), []
    for _ in range(8):
        trust.learn(0, failed=True, longest=32)
        lengths.append(trust.n_draft)
    assert lengths == [16, 8, 4, 2, 1, 1, 1, 1]
    assert trust.mix([0.9])[0] < 0.5
    lengths.clear()
    for _ in range(6):
        trust.learn(trust.n_draft, failed=False, longest=32)
        lengths.append(trust.n_draft)
    assert lengths == [3, 7, 15, 31, 32, 32]
    assert trust.mix([0.9])[0] > 0.8


def test_trust_keeps_a_length_that_fits() -> None:
    trust = KeyRecord(10)
    for _ in range(20):
        trust.learn(4, failed=True, longest=32)
    assert trust.n_draft == 4
