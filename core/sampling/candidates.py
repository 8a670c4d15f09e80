"""The set of tokens still in the race, and its best members. Pure functions.

Unlike in llama.cpp, equal logits have one defined order: the lower token id is the better one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backend.interface import MAXIMA_BLOCK

Rows = NDArray[np.intp]

# Columns of the table that a long row is folded into: enough for their maxima to bound the k-th
# best value well, few enough to be partitioned in microseconds. (152k values: 50 us for k = 40,
# where partitioning all of them takes 1,300 us; EPYC with AVX-512.)
_FOLDS: Final = ((16_384, 1024), (1024, 256))
_CHUNK: Final = 16_384
_IN_BLOCK: Final = np.arange(MAXIMA_BLOCK)


class Candidates(NamedTuple):
    """Never empty, every logit finite; ids ascending, or, if `ranked`, the best first."""

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]  # widened once, exactly, so that no filter rounds
    ranked: bool = False

    def take(self, rows: Rows, ranked: bool = False) -> Candidates:
        """Rows are in the order that `ranked` names."""
        return Candidates(self.ids[rows], self.logits[rows], ranked)

    def first(self, count: int) -> Candidates:
        """Of ranked candidates."""
        return Candidates(self.ids[:count], self.logits[:count], True)

    def where(self, keep: NDArray[np.bool_]) -> Candidates:
        return Candidates(self.ids[keep], self.logits[keep], self.ranked)


@lru_cache(maxsize=4)
def _all_ids(n_vocab: int) -> NDArray[np.int64]:
    ids = np.arange(n_vocab)
    ids.flags.writeable = False
    return ids


def from_logits(logits: NDArray[np.float32]) -> Candidates:
    """All tokens but those at -inf, which have no probability to lose."""
    alive = logits > -np.inf
    if alive.all():
        return Candidates(_all_ids(logits.size), logits.astype(np.float64))
    ids = np.flatnonzero(alive)
    return Candidates(ids, logits[ids].astype(np.float64))


def best_from_logits(
    logits: NDArray[np.float32], count: int, maxima: NDArray[np.float32] | None = None
) -> Candidates:
    """The same as the `count` best of `from_logits`, without widening the others."""
    ids = best_rows(logits, count, maxima)
    best = logits[ids].astype(np.float64)
    if best[-1] == -np.inf:
        n_alive = int(np.count_nonzero(best > -np.inf))
        ids, best = ids[:n_alive], best[:n_alive]
    return Candidates(ids, best, ranked=True)


def best_rows(values: NDArray[Any], count: int, maxima: NDArray[np.float32] | None = None) -> Rows:
    """Rows of the `count` best values, best first; ties go to the lower row. No NaN, please.

    `maxima` of blocks, if they are known, show which few blocks hold all of them.
    """
    if maxima is not None and 4 * count < maxima.size:
        rows = _rows_of_blocks(values, np.partition(maxima, -count)[-count], maxima)
        return rows[(-values[rows]).argsort(kind="stable")[:count]]
    if count < values.size:
        rows = np.flatnonzero(values >= _floor(values, count))
        return rows[(-values[rows]).argsort(kind="stable")[:count]]
    return (-values).argsort(kind="stable")


def _rows_of_blocks(values: NDArray[Any], floor: np.float32, maxima: NDArray[np.float32]) -> Rows:
    """Rows that reach `floor`, ascending."""
    starts = np.flatnonzero(maxima >= floor) * MAXIMA_BLOCK
    rows: Rows = (starts[:, None] + _IN_BLOCK).ravel()
    if rows[-1] >= values.size:
        rows = rows[rows < values.size]
    reaching: Rows = rows[values[rows] >= floor]
    return reaching


def _floor(values: NDArray[Any], count: int) -> Any:
    """A value that at least `count` of `values` reach, and not many more."""
    for size, width in _FOLDS:
        if values.size >= size and 4 * count <= width:
            whole = values.size - values.size % width
            best = np.maximum.reduce(values[:whole].reshape(-1, width), axis=0)
            rest = values[whole:]
            np.maximum(best[: rest.size], rest, out=best[: rest.size])
            values = best  # `count` columns with a maximum of x are `count` values of at least x
            break
    place = values.size - count
    return np.partition(values, place)[place]


def rank(candidates: Candidates, count: int | None = None) -> Candidates:
    """Best first; only the `count` best if that is given."""
    if candidates.ranked:
        return candidates if count is None else candidates.first(count)
    size = candidates.ids.size if count is None else count
    return candidates.take(best_rows(candidates.logits, size), ranked=True)


def by_id(candidates: Candidates) -> Candidates:
    return candidates.take(candidates.ids.argsort()) if candidates.ranked else candidates


def rows_of(candidates: Candidates, tokens: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
    """Rows, in candidates by id, of those tokens that are among them, and which ones are."""
    rows = candidates.ids.searchsorted(tokens)
    found = candidates.ids.take(rows, mode="clip") == tokens
    return rows[found], found


def weights(candidates: Candidates) -> NDArray[np.float64]:
    """Proportional to the probabilities; the best one has 1."""
    logits = candidates.logits
    best = logits[0] if candidates.ranked else logits.max()
    scaled: NDArray[np.float64] = np.exp(logits - best)
    return scaled


def total_weight(logits: NDArray[np.floating], best: float) -> float:
    """Sum of exp(logit - best), in float64 and in the order of the row."""
    total = 0.0
    # Large temporaries cost more than the exponentials: each is fresh memory from the system.
    for start in range(0, logits.size, _CHUNK):
        part = logits[start : start + _CHUNK].astype(np.float64)
        part -= best
        total += float(np.exp(part, out=part).sum())
    return total


def deviation(logits: NDArray[np.float64]) -> float:
    """The standard deviation of all."""
    parts = [logits[start : start + _CHUNK] for start in range(0, logits.size, _CHUNK)]
    mean = math.fsum(float(part.sum()) for part in parts) / logits.size
    squares = math.fsum(float(np.square(part - mean).sum()) for part in parts)
    return math.sqrt(squares / logits.size)
