"""From logits to tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from support.picking_rows import defined, requests_of

from nextn.core.backend.picking import UNSURE
from nextn.core.sampling.params import SamplingParams
from nextn.cuda_kernels.head_pick import (
    MAXIMA_BLOCK,
    Logits,
    RowPlaces,
    head_pick,
    head_summits,
)

from .case import Case, Work
from .models import Sizes
from .place import Place

SEQUENCE = 3
KINDS = {"greedy": SamplingParams(temperature=0), "default sampling": SamplingParams(seed=5)}


def picking(sizes: Sizes) -> Iterator[Case]:
    for rows in sizes.rows:
        for kind, params in KINDS.items():
            make = partial(_pick, sizes=sizes, rows=rows, params=params)
            name = f"{sizes.name} head_pick {sizes.vocab}, {kind}, {rows} rows"
            yield Case(name, make, tolerance=0.0)
        name = f"{sizes.name} head_summits {sizes.vocab}, {rows} rows"
        yield Case(name, partial(_summits, sizes=sizes, rows=rows), tolerance=0.0)


def _logits(place: Place, sizes: Sizes, rows: int) -> tuple[np.ndarray, Logits]:
    values = 3 * place.random.standard_normal((rows, sizes.vocab), np.float32)
    shape = rows, -(-sizes.vocab // MAXIMA_BLOCK)
    return values, Logits(place.put(values), place.zeros(shape), place.zeros(shape))


def _summits(place: Place, sizes: Sizes, rows: int) -> Work:
    values, logits = _logits(place, sizes, rows)

    def error() -> float:
        blocks = values.reshape(rows, -1, MAXIMA_BLOCK).max(-1)
        return float((place.get(logits.maxima) != blocks).mean())

    moved = values.nbytes + values.nbytes // MAXIMA_BLOCK * 2
    return Work(partial(head_summits, place.launcher, logits), moved, error=error)


def _pick(place: Place, sizes: Sizes, rows: int, params: SamplingParams) -> Work:
    """`error`: the part of rows with another token than the definition's."""
    values, logits = _logits(place, sizes, rows)
    head_summits(place.launcher, logits)
    requests = place.put(requests_of([params] * rows, SEQUENCE, sizes.vocab))
    numbers = place.put(np.arange(rows, dtype=np.int32))
    places = RowPlaces(numbers, place.put(np.arange(rows, dtype=np.int32)), numbers)
    picked = place.zeros(rows, np.int32)

    def error() -> float:
        wanted = [defined(row, params, SEQUENCE, i + 1) for i, row in enumerate(values)]
        found = place.get(picked)
        return float(((found != np.array(wanted)) & (found != UNSURE)).mean())

    launch = partial(head_pick, place.launcher, logits, requests, places, picked)
    # What it reads for certain: the maxima. Logits only of the blocks that candidates are in.
    return Work(launch, values.nbytes // MAXIMA_BLOCK, error=error)
