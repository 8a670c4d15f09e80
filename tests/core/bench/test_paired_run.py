"""The order of runs: pairs side by side, without a favoured configuration."""

from __future__ import annotations

import time
from collections import Counter
from itertools import groupby

import pytest
from support.benching import FakeTarget, busy, calm, prompts

from nextn.core.bench.paired_run import PairedRun, RunProgress, Schedule, complete
from nextn.core.bench.record import RunSettings, Sample

SETTINGS = RunSettings()


def run(*targets: FakeTarget, n_prompts: int = 4, **schedule: object) -> list[Sample]:
    plan = Schedule(warm_up=0, **schedule)  # type: ignore[arg-type]
    return PairedRun(targets, prompts(n_prompts), SETTINGS, plan).run()


def test_every_pair_is_on_the_same_prompt_side_by_side() -> None:
    samples = run(FakeTarget("none"), FakeTarget("mtp"), FakeTarget("auto"), repeat=6)
    assert [sample.order for sample in samples] == list(range(72))
    for i in range(0, 72, 3):
        three = samples[i : i + 3]
        assert len({(sample.prompt, sample.repetition) for sample in three}) == 1
        assert {sample.configuration for sample in three} == {"none", "mtp", "auto"}
    first = Counter(samples[i].configuration for i in range(0, 72, 3))
    assert all(n >= 3 for n in first.values())
    orders = {
        tuple(sample.prompt for sample in group if sample.configuration == "none")
        for _, group in groupby(samples, key=lambda sample: sample.repetition)
    }
    assert len(orders) > 1


def test_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[tuple[str, str]]:
        samples = run(FakeTarget("none"), FakeTarget("mtp"), repeat=3, seed=seed)
        return [(sample.configuration, sample.prompt) for sample in samples]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_warm_up_is_not_counted() -> None:
    targets = [FakeTarget("none"), FakeTarget("mtp")]
    samples = PairedRun(targets, prompts(4), SETTINGS, Schedule(repeat=1, warm_up=2)).run()
    assert len(samples) == 8
    assert [len(target.calls) for target in targets] == [6, 6]
    assert targets[0].calls[0] == ("p0", "p2")


def test_users_get_several_prompts_at_once() -> None:
    target = FakeTarget("none")
    samples = run(target, n_prompts=10, repeat=1, concurrency=(1, 2))
    assert sorted(map(len, target.calls)) == [1] * 10 + [2, 8]
    assert Counter(sample.concurrency for sample in samples) == {1: 10, 2: 10}
    assert {sample.group for sample in samples if sample.concurrency == 2} == {0, 1}


def test_it_goes_on_until_the_intervals_are_narrow() -> None:
    pair = FakeTarget("none", noise=calm), FakeTarget("mtp", noise=calm)
    wide, narrow = (
        max(sample.repetition for sample in run(*pair, repeat=2, seconds=60, precision=precision))
        for precision in (0.2, 0.015)
    )
    assert 1 <= wide < narrow


def test_time_ends_it() -> None:
    class Slow(FakeTarget):
        def run(self, *args: object, **others: object):  # type: ignore[no-untyped-def]
            time.sleep(0.005)
            return super().run(*args, **others)  # type: ignore[arg-type]

    samples = run(Slow("none"), Slow("mtp", noise=busy), repeat=1, seconds=0.3, precision=0.0)
    assert {sample.repetition for sample in samples} > {0, 1}
    once = run(Slow("none"), Slow("mtp"), repeat=5, seconds=0.001)
    assert len(once) == 6  # the fewest pairs that say something


def test_an_interrupt_leaves_whole_pairs() -> None:
    none, mtp = FakeTarget("none"), FakeTarget("mtp", interrupt_at=6)
    runner = PairedRun([none, mtp], prompts(4), SETTINGS, Schedule(warm_up=0))
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    pairs = list(complete(runner.samples, ["none", "mtp"]))
    assert len(pairs) == 10
    assert len(runner.samples) in (10, 11)


def test_a_failed_text_takes_its_partner_along() -> None:
    samples = run(FakeTarget("none"), FakeTarget("mtp", error_on="p1"), repeat=2)
    left = list(complete(samples, ["none", "mtp"]))
    assert len(samples) == 16
    assert {sample.prompt for sample in left} == {"p0", "p2", "p3"}


def test_progress_grows_to_the_end() -> None:
    shown: list[RunProgress] = []
    targets = [FakeTarget("none"), FakeTarget("mtp")]
    plan = Schedule(repeat=3, concurrency=(1, 2))
    PairedRun(targets, prompts(4), SETTINGS, plan, shown.append).run()
    done = [progress.done for progress in shown]
    assert done == sorted(done)
    assert 0 <= done[0] <= done[-1] <= 1
    assert shown[-1].seconds_left is not None
