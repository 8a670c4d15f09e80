"""Acceptance is learned by place and by chance, and quickly when a text changes."""

from __future__ import annotations

import random

import pytest

from nextn.core.speculation.policy.acceptance_estimates import AcceptanceCounts, Track


def feed(track: Track, rate: float, rounds: int, *, n: int = 4, seed: int = 0) -> None:
    noise = random.Random(seed)
    for _ in range(rounds):
        hits = 0
        while hits < n and noise.random() < rate:
            hits += 1
        track.rates()
        track.observe(hits, hits < n, ())


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_rate_is_learned(rate: float) -> None:
    off = []
    for seed in range(10):
        track = Track(AcceptanceCounts())
        feed(track, rate, 100, seed=seed)
        off.append(track.places(1)[0] - rate)
    assert abs(sum(off) / len(off)) < 0.05
    assert max(map(abs, off)) < 0.25


def test_places_have_their_own_rates() -> None:
    track = Track(AcceptanceCounts())
    for i in range(60):  # the first is taken always, the second half of the time, the third never
        track.rates()
        track.observe(1 + i % 2, True, ())
    first, second, third = track.places(3)
    assert first > 0.9
    assert 0.35 < second < 0.65
    assert third < 0.2


def test_a_change_of_character_is_noticed_in_a_few_rounds() -> None:
    track = Track(AcceptanceCounts())
    feed(track, 0.95, 200)
    assert track.places(1)[0] > 0.85
    before = track.places(1)[0]
    for _ in range(6):
        track.rates()
        track.observe(0, True, ())
    assert track.places(1)[0] < 0.75 * before
    assert track.version > 0


def test_noise_is_not_a_change() -> None:
    versions = []
    for seed in range(20):
        track = Track(AcceptanceCounts())
        feed(track, 0.6, 100, seed=seed)
        versions.append(track.version)
    assert sum(versions) / 20 < 4


def test_a_new_text_begins_with_what_others_have_shown_and_forgets_it_soon() -> None:
    shared = AcceptanceCounts()
    feed(Track(shared), 0.95, 100)
    track = Track(shared)
    assert track.places(1)[0] > 0.8
    feed(track, 0.0, 8)
    assert track.places(1)[0] < 0.4


def test_chances_are_calibrated_and_trusted_only_if_they_tell_more() -> None:
    noise, honest, vain = random.Random(3), Track(AcceptanceCounts()), Track(AcceptanceCounts())
    for _ in range(300):
        chance = 0.9 if noise.random() < 0.5 else 0.2
        is_hit = noise.random() < chance
        for track, said in ((honest, chance), (vain, noise.choice((0.05, 0.99)))):
            track.rates()
            track.observe(int(is_hit), not is_hit, [said])
    assert honest.trusts_chances()
    assert honest.of_tokens([0.9, 0.2], 2) == pytest.approx([0.9, 0.2], abs=0.2)
    assert honest.least_chance(0.6) >= 0.25
    # The boastful one is corrected, whether by its chances or by places.
    assert max(vain.of_tokens([0.99], 1)) < 0.75
    assert min(vain.of_tokens([0.05], 1)) > 0.35


def test_long_drafts_share_places() -> None:
    track = Track(AcceptanceCounts())
    for _ in range(5):
        track.observe(100, True, ())
    assert len(track.places(64)) == 64
    assert track.places(64)[63] > 0.7
