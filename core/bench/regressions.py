"""What has become slower since an earlier report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from .intervals import RESAMPLES, Floats, Resampled, draw_totals
from .paired_run import paired
from .record import BenchReport, Sample, Summary
from .times import decoding


class Regression(Struct, frozen=True):
    configuration: str
    label: str
    what: str
    now: float
    before: float
    compared: Resampled | None  # None: a count, which has no noise

    @property
    def ratio(self) -> float:
        return self.now / self.before if self.before else 1.0


def regressions(
    now: BenchReport, before: BenchReport, samples: Sequence[Sample], seed: int
) -> Iterator[Regression]:
    """Each configuration's rate of decoding, and its tokens per round where they repeat."""
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
            yield Regression(summary.configuration, summary.label, "tokens per round", a, b, None)


def _of_rate(
    summary: Summary, old: Summary, now: Sequence[Sample], before: Sequence[Sample], seed: int
) -> Iterator[Regression]:
    a, b = _table(now, summary), _table(before, summary)
    if min(len(a), len(b)) < 1:
        return
    rng = np.random.default_rng(seed)
    value = math.log(_rate(a.sum(axis=0)) / _rate(b.sum(axis=0)))
    drawn = np.log(_rate(draw_totals(a, RESAMPLES, rng)) / _rate(draw_totals(b, RESAMPLES, rng)))
    is_known = min(len(a), len(b)) > 1
    compared = Resampled(value, np.abs(drawn - value), len(a) + len(b) - 2) if is_known else None
    yield Regression(
        summary.configuration, summary.label, "tokens/s", summary.times.avg_ts,
        old.times.avg_ts, compared,
    )  # fmt: skip


def _table(samples: Sequence[Sample], summary: Summary) -> Floats:
    """(repetitions, 2): tokens and ms. Repetitions, not prompts, are drawn: what is slow at one
    time of the day is slow for all prompts of a repetition."""
    found: dict[int, tuple[float, float]] = {}
    of = summary.configuration, summary.concurrency
    for sample in samples:
        if (sample.configuration, sample.concurrency) == of:
            n, ms = found.get(sample.repetition, (0.0, 0.0))
            more_n, more_ms = decoding(sample)
            found[sample.repetition] = n + more_n, ms + more_ms
    return np.asarray([row for row in found.values() if row[1] > 0], float).reshape(-1, 2)


def _rate(totals: Floats) -> Floats:
    """Of tokens and ms, along the last axis."""
    rates: Floats = totals[..., 0] / totals[..., 1]
    return rates
