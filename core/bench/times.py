"""Times of one configuration, alone and against the baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Final

import numpy as np

from .intervals import PairBlock, Resampled, resample
from .record import Chunk, Interval, Phases, Sample, Times, TimeSpread

Measure = Callable[[Sample], tuple[float, float]]  # tokens, and ms that they took

_ENDS: Final = 3  # parts of a run, the first and last of which drift is read from
_FEW: Final = 6  # repetitions from which on there is drift to be read


def decoding(sample: Sample) -> tuple[float, float]:
    return sample.decode_n, sample.decode_ms


def whole(sample: Sample) -> tuple[float, float]:
    return sample.predicted_n, sample.total_ms


def reading(sample: Sample) -> tuple[float, float]:
    return sample.prompt_n - sample.cached_n, sample.ttft_ms


def times_of(samples: Sequence[Sample]) -> Times:
    """Times of one configuration, without a comparison."""
    times = Times()
    if not samples:
        return times
    times.avg_ts = rate(samples, decoding)
    times.samples_ts = rates_by_repetition(samples)
    if len(times.samples_ts) > 1:
        times.stddev_ts = stdev(times.samples_ts)
    times.prompt_ts = rate(samples, reading)
    times.ttft = spread([sample.ttft_ms for sample in samples])
    times.itl_chunk, times.itl_token = _latencies(samples)
    n_rounds = sum(sample.rounds or 0 for sample in samples)
    if n_rounds and all(sample.rounds is not None for sample in samples):
        times.round_ms = sum(sample.decode_ms for sample in samples) / n_rounds
        times.phases = _phases(samples, n_rounds)
    times.drift = _drift(samples)
    if samples[0].concurrency > 1:
        times.aggregate_ts = _aggregate(samples)
    return times


def compare(
    samples: Sequence[Sample], base: Sequence[Sample], measure: Measure, seed: int = 0
) -> Resampled | None:
    """Speed against the baseline's, of the pairs that both have."""
    return resample(blocks(samples, base, measure), seed=seed)


def blocks(
    samples: Sequence[Sample], base: Sequence[Sample], measure: Measure
) -> dict[str, list[PairBlock]]:
    mine, theirs = _totals(samples, measure), _totals(base, measure)
    found: dict[str, list[PairBlock]] = {}
    for key in mine:  # in their order, so that the same seed draws the same blocks in every process
        if key in theirs and min(*mine[key], *theirs[key]) > 0:  # else there is no rate
            found.setdefault(key[0], []).append(PairBlock(*mine[key], *theirs[key]))
    return {prompt: found[prompt] for prompt in sorted(found)}


def interval(compared: Resampled | None) -> Interval | None:
    return None if compared is None else compared.interval()


def rate(samples: Iterable[Sample], measure: Measure) -> float:
    """Tokens/s: all tokens by all time, not a mean of rates."""
    pairs = [measure(sample) for sample in samples]
    ms = sum(ms for _, ms in pairs)
    return 1000 * sum(n for n, _ in pairs) / ms if ms > 0 else 0.0


def rates_by_repetition(samples: Sequence[Sample]) -> list[float]:
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.repetition, []).append(sample)
    return [rate(found[repetition], decoding) for repetition in sorted(found)]


def spread(values: Sequence[float], weights: Sequence[int] | None = None) -> TimeSpread | None:
    """None without values. `weights`: how often each counts."""
    if not values:
        return None
    ordered = np.argsort(values, kind="stable")
    value = np.asarray(values, dtype=np.float64)[ordered]
    weight = np.ones(len(value)) if weights is None else np.asarray(weights, float)[ordered]
    reached = np.cumsum(weight) / weight.sum()
    p50, p95 = (float(value[np.searchsorted(reached, p - 1e-12)]) for p in (0.5, 0.95))
    return TimeSpread(float(np.average(value, weights=weight)), p50, p95)


def _totals(
    samples: Iterable[Sample], measure: Measure
) -> dict[tuple[str, int], tuple[float, ...]]:
    """Totals by prompt and repetition: turns of a chat belong together, and what ran at once."""
    found: dict[tuple[str, int], tuple[float, ...]] = {}
    for sample in samples:
        what = sample.prompt if sample.concurrency == 1 else f"group {sample.group}"
        key = what, sample.repetition
        before = found.get(key, (0.0, 0.0))
        found[key] = tuple(a + b for a, b in zip(before, measure(sample), strict=True))
    return found


def _latencies(samples: Sequence[Sample]) -> tuple[TimeSpread | None, TimeSpread | None]:
    """Between chunks, and between tokens: speculation brings several at a time."""
    gaps, sizes = list[float](), list[int]()
    for sample in samples:
        for gap, n in _gaps(sample.chunks):
            gaps.append(gap)
            sizes.append(n)
    counted = [(gap / n, n) for gap, n in zip(gaps, sizes, strict=True) if n]
    each = spread([gap for gap, _ in counted], [n for _, n in counted])
    return spread(gaps), each


def _gaps(chunks: Sequence[Chunk]) -> Iterable[tuple[float, int]]:
    for before, now in pairwise(chunks):
        yield now.ms - before.ms, now.n


def _phases(samples: Sequence[Sample], n_rounds: int) -> Phases | None:
    known = [sample.phases for sample in samples if sample.phases is not None]
    if len(known) < len(samples):
        return None
    return Phases(*(sum(column) / n_rounds for column in zip(*known, strict=True)))


def _drift(samples: Sequence[Sample]) -> float | None:
    """A machine that gets warm gets slower: the last third of the run by the first."""
    n = max(sample.repetition for sample in samples) + 1
    if n < _FEW:
        return None
    part = n // _ENDS
    first = [sample for sample in samples if sample.repetition < part]
    last = [sample for sample in samples if sample.repetition >= n - part]
    if not first or not last:
        return None
    early, late = rate(first, decoding), rate(last, decoding)
    return late / early if early else None


def _aggregate(samples: Sequence[Sample]) -> float:
    """Tokens/s of all users together: per repetition and group of prompts that ran at once."""
    groups: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.repetition, sample.group), []).append(sample)
    rates = []
    for group in groups.values():
        begin = min(sample.started_s for sample in group)
        end = max(sample.started_s + sample.total_ms / 1000 for sample in group)
        rates.append((sum(sample.predicted_n for sample in group), end - begin))
    seconds = fmean(s for _, s in rates)
    return fmean(n for n, _ in rates) / seconds if seconds > 0 else 0.0
