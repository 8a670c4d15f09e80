"""Intervals cover the truth as often as they say, and tell a real change from noise."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from support.benching import Noise, busy, calm, quiet

from nextn.core.bench.intervals import GATE_TAIL, PairBlock, Resampled, _stretch, resample

RUNS = 300


def blocks(
    rng: random.Random, speed: float, noise: Noise, n_prompts: int, n_repetitions: int
) -> dict[str, list[PairBlock]]:
    """Prompts of different lengths and gains, by repetition."""
    found = {}
    for i in range(n_prompts):
        n = 20 + 10 * i
        found[f"p{i}"] = [
            PairBlock(n, n / speed * noise(rng), n, n * noise(rng)) for _ in range(n_repetitions)
        ]
    return found


@pytest.mark.parametrize(("n_prompts", "n_repetitions"), [(8, 5), (30, 2), (1, 12), (20, 1)])
def test_the_same_against_itself(n_prompts: int, n_repetitions: int) -> None:
    rng = random.Random(1)
    covered = missed = 0
    for seed in range(RUNS):
        found = resample(blocks(rng, 1.0, busy, n_prompts, n_repetitions), n_draws=1000, seed=seed)
        assert found is not None
        low, _, high = found.interval()
        covered += low <= 1 <= high
        missed += found.bound(1 - GATE_TAIL) < 1
    assert covered >= 0.91 * RUNS
    assert missed <= RUNS / 100


def test_a_slow_down_is_found() -> None:
    rng = random.Random(2)
    found = 0
    for seed in range(50):
        resampled = resample(blocks(rng, 1 / 1.1, busy, 30, 40), n_draws=1000, seed=seed)
        assert resampled is not None
        found += resampled.bound(1 - GATE_TAIL) < 1
    assert found >= 45


def test_without_noise_the_ratio_of_totals_is_exact() -> None:
    found = resample(blocks(random.Random(0), 1.25, quiet, 4, 3))
    assert found is not None
    assert found.interval() == pytest.approx((1.25, 1.25, 1.25))


def test_totals_not_means_of_ratios() -> None:
    """A long text counts for more than a short one."""
    table = {
        "long": [PairBlock(1000, 1000, 1000, 2000)] * 3,
        "short": [PairBlock(10, 20, 10, 10)] * 3,
    }
    found = resample(table)
    assert found is not None
    assert math.exp(found.value) == pytest.approx(2010 / 1020)


def test_prompts_are_not_noise() -> None:
    """They gain differently, each of them always the same: the figure for them is certain."""
    table = {f"p{i}": [PairBlock(10, 10 / (1 + i), 10, 10)] * 3 for i in range(5)}
    found = resample(table)
    assert found is not None
    low, _, high = found.interval()
    assert high - low < 1e-9


def test_more_repetitions_make_it_narrower() -> None:
    widths = []
    for n in (2, 8, 32):
        found = resample(blocks(random.Random(3), 1.0, calm, 10, n))
        assert found is not None
        low, _, high = found.interval()
        widths.append(high - low)
    assert all(later < 0.8 * earlier for earlier, later in pairwise(widths))


def test_too_little_says_nothing() -> None:
    assert resample({}) is None
    assert resample({"p": [PairBlock(1, 1, 1, 1)] * 2}) is None
    assert resample({"p": [PairBlock(1, 0, 1, 1)] * 5}) is None


def test_bounds_are_in_order() -> None:
    found = resample(blocks(random.Random(4), 1.0, busy, 5, 4))
    assert isinstance(found, Resampled)
    chances = [0.001, 0.025, 0.3, 0.7, 0.975, 0.999]
    bounds = [found.bound(chance) for chance in chances]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize(
    ("chance", "freedom", "student"),
    [
        (0.975, 4, 2.776), (0.975, 10, 2.228), (0.975, 60, 2.000), (0.999, 10, 4.144),
        (0.999, 30, 3.385),
    ],
)  # fmt: skip
def test_students_quantiles(chance: float, freedom: int, student: float) -> None:
    normal = {0.975: 1.95996, 0.999: 3.09023}[chance]
    assert normal * _stretch(chance, freedom) == pytest.approx(student, rel=0.02)
