"""Against an earlier report: whether the two can be compared at all, and what has become slower."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ..errors import ConfigError
from .intervals import RESAMPLES, Floats, Resampled
from .paired_run import paired
from .record import BenchReport, RunSettings, Sample, Summary
from .times import decoding

# Of the provenance: what has to be equal, and what it is called.
_HOST: Final = {
    "cpu_info": "the processor",
    "cores": "the number of cores",
    "device": "the device",
    "n_threads": "the number of threads",
    "cpu_kernels": "the kernels' instruction set",
    "model_sha256": "the model's contents",
    "n_ctx": "the context size",
    "type_k": "the type of cached keys",
    "type_v": "the type of cached values",
}
_SAME: Final = ("options", "server", "model", "api", "request")  # of a configuration


@dataclass(frozen=True, slots=True)
class Regression:
    configuration: str
    label: str
    what: str
    now: float
    before: float
    compared: Resampled | None  # None: a count, which has no noise

    @property
    def ratio(self) -> float:
        return self.now / self.before if self.before else 1.0


def check_comparable(now: BenchReport, before: BenchReport) -> None:
    """ConfigError: figures of two such runs say nothing about each other."""
    wrong = list(_differences(now, before))
    if wrong:
        raise ConfigError(
            f"baseline: the two runs cannot be compared: {'; '.join(wrong[:4])}"
            + (f"; and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        )


def _differences(now: BenchReport, before: BenchReport) -> Iterator[str]:
    for key, name in _HOST.items():
        a, b = now.provenance.get(key), before.provenance.get(key)
        if a != b:
            yield f"{name} is {_shown(a)}, was {_shown(b)}"
    if now.prompt_set_sha256 != before.prompt_set_sha256:
        yield (
            f"the prompts differ ({now.prompt_set} {now.prompt_set_sha256[:8]}, "
            f"were {before.prompt_set} {before.prompt_set_sha256[:8]})"
        )
    for setting in fields(RunSettings):
        a, b = getattr(now.settings, setting.name), getattr(before.settings, setting.name)
        if a != b:
            yield f"{setting.name} is {_shown(a)}, was {_shown(b)}"
    known = {each.name: each for each in before.configurations}
    for each in now.configurations:
        if each.name not in known:
            yield f"configuration {each.name} is not in the baseline"
            continue
        for key in _SAME:
            a, b = each.details.get(key), known[each.name].details.get(key)
            if a != b:
                yield f"{key} of {each.name} is {_shown(a)}, was {_shown(b)}"


def regressions(
    now: BenchReport, before: BenchReport, samples: Sequence[Sample], seed: int
) -> Iterator[Regression]:
    """Of every configuration: the rate of decoding, and tokens per round where they repeat."""
    names = [each.name for each in before.configurations]
    old_samples = paired(before.samples, names)
    repeats = {each.name for each in now.configurations if each.repeats}
    repeats &= {each.name for each in before.configurations if each.repeats}
    for summary in now.summaries:
        old = before.summary(summary.configuration, "", summary.concurrency)
        if summary.category or old is None:
            continue
        yield from _of_rate(summary, old, samples, old_samples, seed)
        a, b = summary.counts.mean_len, old.counts.mean_len
        if summary.configuration in repeats and a is not None and b is not None:
            yield Regression(summary.configuration, _label(summary), "tokens per round", a, b, None)


def _of_rate(
    summary: Summary, old: Summary, now: Sequence[Sample], before: Sequence[Sample], seed: int
) -> Iterator[Regression]:
    a, b = _table(now, summary), _table(before, summary)
    if min(len(a), len(b)) < 1:
        return
    rng = np.random.default_rng(seed)
    value = math.log(_rates(a.sum(axis=0)) / _rates(b.sum(axis=0)))
    drawn = np.log(_drawn(a, rng) / _drawn(b, rng))
    is_known = min(len(a), len(b)) > 1
    compared = Resampled(value, np.abs(drawn - value), len(a) + len(b) - 2) if is_known else None
    yield Regression(
        summary.configuration, _label(summary), "tokens/s", summary.times.avg_ts,
        old.times.avg_ts, compared,
    )  # fmt: skip


def _table(samples: Sequence[Sample], summary: Summary) -> Floats:
    """(repetitions, 2): tokens and ms. Repetitions, not prompts, are drawn: what is slow at one
    time of the day is slow for all prompts of a repetition."""
    found: dict[int, tuple[float, float]] = {}
    for sample in samples:
        if (sample.configuration, sample.concurrency) == (
            summary.configuration, summary.concurrency,
        ):  # fmt: skip
            n, ms = found.get(sample.repetition, (0.0, 0.0))
            more_n, more_ms = decoding(sample)
            found[sample.repetition] = n + more_n, ms + more_ms
    return np.asarray([row for row in found.values() if row[1] > 0], float).reshape(-1, 2)


def _drawn(table: Floats, rng: np.random.Generator) -> Floats:
    n = len(table)
    if n == 1:
        return np.full(RESAMPLES, _rates(table[0]))
    drawn: Floats = table[rng.integers(0, n, (RESAMPLES, n - 1))].sum(axis=1)
    rates: Floats = drawn[:, 0] / drawn[:, 1]
    return rates


def _rates(totals: Floats) -> float:
    return float(totals[0] / totals[1])


def _label(summary: Summary) -> str:
    if summary.concurrency == 1:
        return summary.configuration
    return f"{summary.configuration}, {summary.concurrency} users"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:12]}..."
