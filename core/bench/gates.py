"""What a job may fail on, judged so that noise alone does not fail it.

Counts that repeat exactly are compared as they are. Of speeds, the bound is taken that the truth
lies beyond with a chance of one in a thousand: a gate is missed only where that bound misses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..errors import ConfigError
from .intervals import GATE_TAIL, Resampled
from .record import BenchReport, Configuration, GateResult, Sample, Summary
from .regressions import Regression, regressions
from .times import compare, decoding

IDENTICAL, ACCEPTANCE, MEAN_LEN = "expect-identical", "min-acceptance", "min-mean-len"
SPEEDUP, REGRESSION = "min-speedup", "max-regression"


class Gates(Struct, frozen=True):
    identical: bool = True
    min_acceptance: float | None = None
    min_mean_len: float | None = None
    min_speedup: float | None = None
    max_regression: float | None = None
    baseline: BenchReport | None = None

    @property
    def judges_figures(self) -> bool:
        limits = (self.min_acceptance, self.min_mean_len, self.min_speedup, self.baseline)
        return any(limit is not None for limit in limits)

    def check(self, configurations: Sequence[Configuration], baseline: str) -> None:
        """Refuse gates that nothing could ever pass or fail, before anything runs."""
        drafting = [each for each in configurations if _drafts(each)]
        for name, wanted in ((ACCEPTANCE, self.min_acceptance), (MEAN_LEN, self.min_mean_len)):
            if wanted is None:
                continue
            if not drafting:
                raise ConfigError(f"{name} needs a configuration that drafts")
            if not any(each.repeats for each in drafting):
                raise ConfigError(
                    f"{name} needs drafts that repeat exactly, but what "
                    f"{drafting[0].name} drafts follows the clock; add fixed to it, or spec-fixed, "
                    "or frozen spec-costs"
                )
        if self.min_speedup is not None and len(configurations) < 2:
            raise ConfigError(f"{SPEEDUP} needs two configurations, {baseline} and another")


def judge(
    gates: Gates, report: BenchReport, samples: Sequence[Sample], seed: int
) -> list[GateResult]:
    """`samples`: pairs that were not disturbed."""
    found = []
    for configuration in report.configurations:
        name = configuration.name
        for summary in report.summaries:
            if summary.configuration != name or summary.category:
                continue
            if gates.identical and configuration.lossless:
                found += _identical(summary)
            if configuration.repeats and _drafts(configuration) and summary.concurrency == 1:
                found += _counted(gates, summary)
            if gates.min_speedup is not None and name != report.baseline:
                found.append(_fast_enough(gates.min_speedup, summary, report, samples, seed))
    if gates.baseline is not None and gates.max_regression is not None:
        limit = gates.max_regression
        found += [_kept(each, limit) for each in regressions(report, gates.baseline, samples, seed)]
    return found


def _drafts(configuration: Configuration) -> bool:
    return bool(configuration.details.get("spec_types", True))


def _identical(summary: Summary) -> list[GateResult]:
    counts = summary.counts
    if counts.identical is None:
        return []
    line = f"{summary.label}: texts are those of the baseline"
    if not counts.identical:
        line = f"{summary.label}: texts differ from the baseline; {counts.first_difference}"
    return [GateResult(IDENTICAL, summary.configuration, counts.identical, line)]


def _counted(gates: Gates, summary: Summary) -> list[GateResult]:
    counts, found = summary.counts, []
    for gate, wanted, value in (
        (ACCEPTANCE, gates.min_acceptance, counts.accept_rate),
        (MEAN_LEN, gates.min_mean_len, counts.mean_len),
    ):
        if wanted is None:
            continue
        ok = value is not None and value >= wanted
        shown = "unknown: nothing was drafted" if value is None else f"{value:.4g}"
        line = f"{summary.label}: {shown}{'' if ok else f' < {wanted:g}'}"
        found.append(GateResult(gate, summary.configuration, ok, line))
    return found


def _fast_enough(
    wanted: float, summary: Summary, report: BenchReport, samples: Sequence[Sample], seed: int
) -> GateResult:
    mine, base = (
        [s for s in samples if (s.configuration, s.concurrency) == (name, summary.concurrency)]
        for name in (summary.configuration, report.baseline)
    )
    compared = compare(mine, base, decoding, seed)
    label = summary.label
    if compared is None:
        line = f"{label}: too few pairs for an interval; give more prompts or repetitions"
        return GateResult(SPEEDUP, summary.configuration, ok=True, line=line)
    ok = compared.bound(1 - GATE_TAIL) >= wanted
    line = f"{label}: {bounds(compared)}{'' if ok else f' < {wanted:g}'}"
    return GateResult(SPEEDUP, summary.configuration, ok, line)


def _kept(regression: Regression, limit: float) -> GateResult:
    name, compared, what = regression.label, regression.compared, regression.what
    if compared is None:
        ok = regression.ratio >= 1 - limit
        change = f"{regression.ratio - 1:+.1%}"
    else:
        ok = compared.bound(1 - GATE_TAIL) >= 1 - limit
        interval = compared.interval()
        change = f"{interval.value - 1:+.1%} ({interval.low - 1:+.1%} to {interval.high - 1:+.1%})"
    beyond = "" if ok else f", beyond -{limit:.0%}"
    line = f"{name}: {what} {regression.now:.4g}, was {regression.before:.4g}: {change}{beyond}"
    return GateResult(REGRESSION, regression.configuration, ok, line)


def bounds(compared: Resampled) -> str:
    low, value, high = compared.interval()
    return f"{value:.3f}x (95 % {low:.3f} to {high:.3f})"
