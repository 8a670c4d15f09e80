"""Rows of logits and ways to pick from them: ties, masks, huge and equal logits, all filters."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nextn.core.backend.picking import MAX_BEST, UNSURE
from nextn.core.errors import ConfigError, NonFiniteError
from nextn.core.sampling.native_picks import make_pick_request
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.cuda_kernels.head_pick import device_request

Floats = NDArray[np.float32]
INF = math.inf
FILTERS = ("top_p", "min_p", "temperature", "top_k")
PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
BIASES = (-INF, -1e300, -7.25, -0.0, 0.5, 1e300, 1e200, 40.0)


def normal(n_rows: int, size: int, seed: int = 0, spread: float = 3.0) -> Floats:
    rng = np.random.default_rng([seed, size])
    return rng.normal(0, spread, (n_rows, size)).astype(np.float32)


def any_row(rng: np.random.Generator, size: int) -> Floats:
    row = rng.normal(rng.choice([0, -30, 50]), rng.choice([0, 1e-3, 1, 4, 1e4]), size)
    if rng.random() < 0.5:
        row = np.round(row * 4) / 4 * rng.choice([-1.0, 1.0])
    row[rng.random(size) < rng.choice([0, 0, 0, 0.3, 0.99, 1])] = -INF
    row[rng.integers(size)] = rng.choice([0.0, -0.0, 3e38, 12.5])
    if rng.random() < 0.04:
        row[rng.integers(size)] = rng.choice([INF, math.nan, -math.nan])
    return row.astype(np.float32)


def any_params(rng: np.random.Generator, size: int) -> SamplingParams:
    """A chain that a request can say."""
    later = rng.choice(FILTERS, rng.integers(0, 7)).tolist()
    n_best = rng.choice([1, 3, 40, 64, MAX_BEST, int(rng.integers(1, MAX_BEST + 1))])
    usual = rng.random() < 0.5
    params = SamplingParams(
        temperature=float(rng.choice([0.0, 1.0, 0.8, 1e-3, 1e-30, 1.7])),
        top_k=int(n_best),
        top_p=float(rng.choice(PROBABILITIES) if usual else rng.uniform(1e-6, 1)),
        min_p=float(rng.choice([0.0, *PROBABILITIES]) if usual else rng.uniform(0, 1)),
        min_keep=int(rng.choice([0, 0, 1, 3, 500])),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        samplers=("top_k", *later),
    )
    return with_biases(rng, params, size) if rng.random() < 0.4 else params


def with_biases(rng: np.random.Generator, params: SamplingParams, size: int) -> SamplingParams:
    ids = rng.choice(size, min(size, int(rng.choice([1, 2, 10, 64]))), replace=False)
    pairs = tuple((int(token), float(rng.choice(BIASES))) for token in sorted(ids))
    return replace(params, logit_bias=pairs)


def requests_of(all_params: list[SamplingParams], sequence: int, n_vocab: int) -> NDArray[np.int64]:
    """One row for each."""
    made = []
    for params in all_params:
        request = make_pick_request(params, sequence, n_vocab)
        assert request is not None
        made.append(device_request(*request.arrays))  # type: ignore[arg-type]
    return np.stack(made)


def defined(row: Floats, params: SamplingParams, sequence: int, position: int) -> int:
    """By `core/sampling`; UNSURE where it has a complaint instead of a token."""
    try:
        return Sampler(params, n_vocab=row.size, sequence=sequence).pick(row, (), position)
    except (NonFiniteError, ConfigError):
        return UNSURE
