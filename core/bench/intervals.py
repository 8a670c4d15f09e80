"""Bootstrap intervals of a ratio of rates, from pairs.

A block is one prompt in one repetition, written by both configurations one right after the other,
so that whatever the machine did meanwhile it did to both. Prompts are strata: the question is how
sure the figure is for these prompts, not what others would give. Of the r repetitions of a prompt
r - 1 are drawn with replacement (Rao and Wu), which makes the variance of the drawn totals that of
the true ones; drawing r would make it too small by 1/r, a fifth where r is 5.

The interval reaches equally far to both sides, in logarithms: as far as 95 % of the drawn ratios
lie from the measured one. Disturbances have long tails. In 200 runs of one configuration against
itself, beside busy neighbours, the plain percentiles of so skewed draws covered the truth 181
times, BCa 163 times, these intervals 188 times, at the same width (docs/bench.md).

With one repetition nothing is known about its noise: then prompts are drawn instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .record import Interval

Floats = NDArray[np.float64]

LEVEL: Final = 0.95  # of intervals that are shown
GATE_TAIL: Final = 0.001  # chance, on one side, that noise alone fails a gate
RESAMPLES: Final = 4000
MIN_BLOCKS: Final = 3
_AT_ONCE: Final = 1 << 20  # numbers drawn together


class PairBlock(NamedTuple):
    """What both did: tokens and ms, of the configuration and of the baseline."""

    n: float
    ms: float
    base_n: float
    base_ms: float


class Resampled(NamedTuple):
    """A figure, as it is and as it might have been; of a ratio its logarithm."""

    value: float
    distances: Floats  # from `value`, of what might have been
    freedom: int  # repetitions beyond the first, of all prompts: few know their own spread badly

    def bound(self, chance: float) -> float:
        """The ratio below which the truth lies with this probability."""
        way = self.reach(min(chance, 1 - chance))
        return math.exp(self.value - way if chance < 0.5 else self.value + way)

    def reach(self, tail: float) -> float:
        """How far from `value` the truth lies beyond with this probability, on either side."""
        drawn = float(np.quantile(self.distances, 1 - 2 * tail))
        return _stretch(1 - tail, self.freedom) * drawn

    def interval(self, level: float = LEVEL) -> Interval:
        tail = (1 - level) / 2
        return Interval(self.bound(tail), math.exp(self.value), self.bound(1 - tail))


def resample(
    blocks: Mapping[str, Sequence[PairBlock]], *, n_draws: int = RESAMPLES, seed: int = 0
) -> Resampled | None:
    """Speed against the baseline, resampled. `blocks`: by prompt. None: they are too few."""
    strata = [_table(each) for each in blocks.values() if each]
    strata = [each for each in strata if each[:, 1].sum() > 0 and each[:, 3].sum() > 0]
    if not strata or sum(map(len, strata)) < MIN_BLOCKS:
        return None
    if all(len(each) == 1 for each in strata):
        strata = [np.concatenate(strata)]
    rng = np.random.default_rng(seed)
    value = float(_log_ratio(sum(each.sum(axis=0) for each in strata)))
    totals: Floats = np.zeros((n_draws, 4))
    for each in strata:
        totals += draw_totals(each, n_draws, rng)
    freedom = sum(len(each) - 1 for each in strata)
    return Resampled(value, np.abs(_log_ratio(totals) - value), freedom)


def draw_totals(block: Floats, n_draws: int, rng: np.random.Generator) -> Floats:
    """(n_draws, columns): totals of a stratum's rows, as its repetitions might have come."""
    n = len(block)
    if n == 1:
        return np.broadcast_to(block[0], (n_draws, block.shape[1]))
    parts, at_once = [], max(1, _AT_ONCE // n)
    for first in range(0, n_draws, at_once):
        size = (min(at_once, n_draws - first), n - 1)
        parts.append(block[rng.integers(0, n, size)].sum(axis=1))
    drawn: Floats = np.concatenate(parts) * (n / (n - 1))
    return drawn


def _log_ratio(totals: Floats) -> Floats:
    n, ms, base_n, base_ms = np.moveaxis(totals, -1, 0)
    ratio: Floats = np.log(n * base_ms / (ms * base_n))
    return ratio


def _stretch(chance: float, freedom: int) -> float:
    """Student's quantile by the normal one (Cornish and Fisher; within 2 % from 3 on)."""
    if freedom < 1 or chance == 0.5:
        return 1.0
    z, v = NormalDist().inv_cdf(chance), float(freedom)
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return t / z


def _table(blocks: Sequence[PairBlock]) -> Floats:
    return np.asarray(blocks, dtype=np.float64).reshape(-1, 4)
