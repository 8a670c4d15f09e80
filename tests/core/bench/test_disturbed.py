"""What something else got in the way of is set aside, on both sides, and nothing else is."""

from __future__ import annotations

import random
from collections import Counter

from support.benching import FakeTarget, Noise, busy, calm, prompts, quiet

from nextn.core.bench.disturbed import disturbed_pairs, undisturbed
from nextn.core.bench.paired_run import PairedRun, Schedule
from nextn.core.bench.record import RunSettings, Sample
from nextn.core.bench.times import compare, decoding


def run(noise: Noise, speed: float = 1.0, seed: int = 0, repeat: int = 10) -> list[Sample]:
    targets = [FakeTarget("none", 1.0, noise, seed), FakeTarget("mtp", 1 / speed, noise, seed)]
    plan = Schedule(repeat, warm_up=0, seed=seed)
    return PairedRun(targets, prompts(8), RunSettings(), plan).run()


def test_a_quiet_run_is_left_alone() -> None:
    for noise in (quiet, calm):
        assert disturbed_pairs(run(noise, speed=2.0)) == set()


def test_a_stall_takes_its_pair_along() -> None:
    samples = run(calm)
    victim = samples[37]
    victim.total_ms *= 3
    far = disturbed_pairs(samples)
    assert far == {(1, victim.repetition, victim.group)}
    left = undisturbed(samples)
    assert len(left) == len(samples) - 2
    assert len(set(Counter(sample.configuration for sample in left).values())) == 1


def test_slower_at_all_times_is_not_disturbed() -> None:
    """Prompts that are longer, a configuration that is slower, and one that varies more."""

    def wide(rng: random.Random) -> float:
        return rng.lognormvariate(0, 0.2)

    targets = [FakeTarget("none", 1.0, calm), FakeTarget("slow", 5.0, wide)]
    samples = PairedRun(targets, prompts(8), RunSettings(), Schedule(10, warm_up=0)).run()
    for sample in samples:
        if sample.prompt == "p3":
            sample.total_ms *= 20
    assert disturbed_pairs(samples) == set()


def test_one_repetition_has_nothing_to_compare_with() -> None:
    assert disturbed_pairs(run(busy, repeat=1)) == set()


def test_figures_get_nearer_to_the_truth() -> None:
    errors: dict[str, list[float]] = {"all": [], "left": []}
    for seed in range(30):
        samples = run(busy, speed=1.25, seed=seed)
        for name, some in (("all", samples), ("left", undisturbed(samples))):
            base, mine = ([s for s in some if s.configuration == n] for n in ("none", "mtp"))
            found = compare(mine, base, decoding)
            assert found is not None
            errors[name].append(found.interval().value / 1.25 - 1)
    worst = {name: max(map(abs, each)) for name, each in errors.items()}
    assert worst["left"] < 0.6 * worst["all"]
    assert abs(sum(errors["left"])) / 30 < 0.02  # and without a bias
