"""Gates: what is missed is missed, and noise misses nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from support.benching import FakeTarget, Noise, busy, calm, prompts, quiet

from nextn.core.bench.gates import Gates
from nextn.core.bench.paired_run import PairedRun, Schedule
from nextn.core.bench.record import (
    BenchReport,
    Configuration,
    GateResult,
    PromptSet,
    RunSettings,
)
from nextn.core.bench.reporting import fill, judge_report, new_report
from nextn.core.bench.run_differences import check_comparable
from nextn.core.errors import ConfigError

HOST = {"cpu_info": "x", "n_threads": 2, "model_sha256": "m"}


def make(*targets: FakeTarget, repeats: bool = True, n_repetitions: int = 5) -> BenchReport:
    configurations = [
        Configuration(each.name, repeats, lossless=True, details=each.describe())
        for each in targets
    ]
    prompt_set = PromptSet("set", tuple(prompts(6)))
    report = new_report(dict(HOST), prompt_set, RunSettings(), configurations)
    plan = Schedule(repeat=n_repetitions, warm_up=0)
    runner = PairedRun(targets, prompt_set.prompts, RunSettings(), plan)
    fill(report, runner.run(), {}, 0)
    return report


def judged(report: BenchReport, gates: Gates) -> Sequence[GateResult]:
    judge_report(report, gates, 0)
    return report.gates


def pair(
    speed: float, noise: Noise = quiet, seed: int = 0, per_round: int = 1
) -> tuple[FakeTarget, FakeTarget]:
    return (
        FakeTarget("none", noise=noise, seed=seed),
        FakeTarget("mtp", 1 / speed, noise, seed=seed, per_round=per_round),
    )


def test_equal_texts() -> None:
    (result,) = judged(make(*pair(1.5)), Gates())
    assert result.ok
    none, mtp = pair(1.5)
    mtp.text = lambda id: [len(id), 1, 2, 3 + (id == "p4")]
    (result,) = judged(make(none, mtp), Gates())
    assert not result.ok
    assert result.line == "mtp: texts differ from the baseline; p4: token 4 is 4, not 3"
    assert judged(make(none, mtp), Gates(identical=False)) == []


def test_lossy_configurations_may_differ() -> None:
    none, mtp = pair(1.5)
    mtp.text = lambda _: [7]
    report = make(none, mtp)
    report.configurations[1].lossless = False
    assert judged(report, Gates()) == []


@pytest.mark.parametrize(("wanted", "ok"), [(1.0, True), (1.49, True), (1.51, False), (2.0, False)])
def test_speed_without_noise(wanted: float, ok: bool) -> None:
    (result,) = judged(make(*pair(1.5)), Gates(identical=False, min_speedup=wanted))
    assert result.ok is ok
    assert result.line.startswith("mtp: 1.500x (95 % 1.500 to 1.500)")
    assert result.line.endswith("" if ok else f" < {wanted:g}")


def test_noise_alone_misses_nothing() -> None:
    missed = 0
    for seed in range(25):
        none, mtp = pair(1.0, busy, seed=seed)
        gates = Gates(min_speedup=1.0)
        missed += not all(result.ok for result in judged(make(none, mtp), gates))
    assert not missed


def test_too_few_pairs_miss_nothing_and_say_so() -> None:
    report = make(*pair(0.5), n_repetitions=1)
    report.samples = [sample for sample in report.samples if sample.prompt == "p0"]
    (result,) = judged(report, Gates(identical=False, min_speedup=1.0))
    assert result.ok
    assert "too few pairs" in result.line


@pytest.mark.parametrize(("acceptance", "length", "ok"), [(1.0, 4.0, True), (0.5, 4.1, False)])
def test_counts(acceptance: float, length: float, ok: bool) -> None:
    report = make(*pair(1.5, per_round=4))
    gates = Gates(identical=False, min_acceptance=acceptance, min_mean_len=length)
    results = judged(report, gates)
    assert [result.gate for result in results] == ["min-acceptance", "min-mean-len"]
    assert all(result.ok for result in results) is ok
    if not ok:
        assert results[1].line == "mtp: 4 < 4.1"


def test_counts_that_follow_the_clock_are_not_judged() -> None:
    report = make(*pair(1.5, per_round=4), repeats=False)
    gates = Gates(identical=False, min_acceptance=1.0, min_mean_len=99.0)
    assert judged(report, gates) == []
    with pytest.raises(ConfigError, match="what mtp drafts follows the clock"):
        gates.check(report.configurations, "none")


def test_gates_that_nothing_could_pass_are_refused() -> None:
    report = make(FakeTarget("none"))
    for gates in (Gates(min_acceptance=0.5), Gates(min_mean_len=2), Gates(min_speedup=1)):
        with pytest.raises(ConfigError, match="needs"):
            gates.check(report.configurations, "none")
    Gates().check(report.configurations, "none")


# Against an earlier report


def test_an_earlier_report() -> None:
    before = make(*pair(1.5, calm))
    before = BenchReport.from_json(json.loads(json.dumps(before.to_json())))
    gates = Gates(identical=False, baseline=before, max_regression=0.1)
    same = judged(make(*pair(1.5, calm, seed=1)), gates)
    assert [result.ok for result in same] == [True] * len(same)
    slower = judged(make(*pair(1.2, calm, seed=2)), gates)
    assert [result.configuration for result in slower if not result.ok] == ["mtp"]
    (line,) = (result.line for result in slower if not result.ok)
    assert "beyond -10%" in line


def test_shorter_rounds_are_a_regression() -> None:
    before, now = make(*pair(1.5, per_round=4)), make(*pair(1.5, per_round=3))
    results = judged(now, Gates(identical=False, baseline=before, max_regression=0.1))
    assert [result.line for result in results if not result.ok] == [
        "mtp: tokens per round 3, was 4: -25.0%, beyond -10%"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.provenance.update(cpu_info="y"), "the processor is x, was y"),
        (lambda r: r.provenance.update(n_threads=4), "the number of threads is 2, was 4"),
        (lambda r: r.provenance.pop("model_sha256"), "the model is m, was unknown"),
        (lambda r: setattr(r, "prompt_set_sha256", "f" * 64), "the prompts differ"),
        (lambda r: setattr(r, "settings", RunSettings(0.5)), "temperature is 0.0, was 0.5"),
        (lambda r: r.configurations.pop(), "configuration mtp is not in the baseline"),
        (lambda r: r.configurations[1].details.update(options={"a": 1}), "options of mtp is"),
    ],
)
def test_what_cannot_be_compared_is_refused(change: object, message: str) -> None:
    now, before = make(*pair(1.5)), make(*pair(1.5))
    check_comparable(now, before)
    change(before)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=message):
        check_comparable(now, before)


def test_two_runs_have_the_same_counts() -> None:
    one, two = (make(*pair(1.5, per_round=4)) for _ in range(2))
    assert [each.counts for each in one.summaries] == [each.counts for each in two.summaries]


def test_counts_that_should_repeat_and_do_not_are_warned_of() -> None:
    def warned(options: dict[str, object]) -> list[str]:
        report = make(*pair(1.5, per_round=4))
        report.configurations[1].details["options"] = options
        next(s for s in report.samples if s.configuration == "mtp" and s.repetition == 2).rounds = 9
        fill(report, report.samples, {}, 0)
        return [line for line in report.warnings if "counts differ" in line]

    assert len(warned({"fixed": True})) == 1
    assert warned({"costs": "file"}) == []  # what is accepted is still learned
