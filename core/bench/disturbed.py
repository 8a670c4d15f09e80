"""Texts that other work on the machine has disturbed.

Such a text takes several times as long as usual, and a total is then mostly a measure of how many
of them there were: on a busy machine, ratios of totals of ten times as many pairs were no more
exact. So where any configuration's text took much longer than that configuration takes for that
prompt, the prompt's texts of that repetition are set aside, of all configurations alike. The
report says how many they are, and its samples include them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from .record import Sample

FAR: Final = 5.0  # standard deviations, estimated from the median distance
_SCALE: Final = 1.4826  # of the median distance from the median, where noise is normal
_FEW: Final = 2  # repetitions below which nothing is usual

Pair = tuple[int, int, int]  # users, repetition, prompts that ran at once


def pair_of(sample: Sample) -> Pair:
    return sample.concurrency, sample.repetition, sample.group


def undisturbed(samples: Sequence[Sample]) -> list[Sample]:
    """`samples`: complete pairs."""
    far = disturbed_pairs(samples)
    return [sample for sample in samples if pair_of(sample) not in far]


def disturbed_pairs(samples: Sequence[Sample]) -> set[Pair]:
    found: set[Pair] = set()
    for concurrency in {sample.concurrency for sample in samples}:
        found |= _disturbed([s for s in samples if s.concurrency == concurrency])
    return found


def _disturbed(samples: Sequence[Sample]) -> set[Pair]:
    """The disturbed pairs of one number of users."""
    totals: dict[tuple[str, Pair], float] = {}
    for sample in samples:
        key = sample.configuration, pair_of(sample)
        totals[key] = totals.get(key, 0.0) + sample.total_ms
    beyond = _beyond_usual(totals)
    # The same measure for all: a configuration that varies more is not cut more.
    spreads = [_SCALE * median(map(abs, each.values())) for each in beyond.values() if each]
    limit = FAR * max(spreads, default=0.0)
    if not limit:
        return set()
    return {pair for each in beyond.values() for pair, way in each.items() if way > limit}


def _beyond_usual(totals: dict[tuple[str, Pair], float]) -> dict[str, dict[Pair, float]]:
    """Log of each pair's time by what is usual for its configuration and prompts."""
    usual: dict[tuple[str, int], list[float]] = {}
    for (name, (_, _, group)), ms in totals.items():
        if ms > 0:
            usual.setdefault((name, group), []).append(math.log(ms))
    middles = {key: median(each) for key, each in usual.items() if len(each) >= _FEW}
    found: dict[str, dict[Pair, float]] = {}
    for (name, pair), ms in totals.items():
        middle = middles.get((name, pair[2]))
        if middle is not None and ms > 0:
            found.setdefault(name, {})[pair] = math.log(ms) - middle
    return found
