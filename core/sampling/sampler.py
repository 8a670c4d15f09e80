"""Logits to a token: the argmax of log p + Gumbel noise over what the transforms leave.

That is an exact draw from p (the Gumbel-max identity), and a pure function of logits,
parameters, seed, sequence and position: speculation, batching and retries cannot change it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import NonFiniteError
from .noise import PICK_TOKEN, gumbel
from .params import SamplingParams
from .transforms import apply, from_logits


def pick(
    logits: NDArray[np.float32], params: SamplingParams, *, sequence: int, position: int
) -> int:
    """The token at `position`, its absolute index in the sequence, from logits (V,)."""
    check_finite(logits)
    if params.temperature == 0:
        return int(np.argmax(logits))  # the lowest id among equals
    candidates = apply(from_logits(logits), params)
    # log p differs from these logits by one constant, which an argmax does not see.
    noise = gumbel(params.seed, sequence, position, PICK_TOKEN, candidates.ids)
    return int(candidates.ids[np.argmax(candidates.logits + noise)])


def logprobs(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities of the model itself, before any transform; same shape, last axis V."""
    check_finite(logits)
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def check_finite(logits: NDArray[np.float32]) -> None:
    """Refuse NaN, +inf and rows of nothing but -inf; single -inf entries are a mask."""
    best = logits.max(axis=-1)  # NaN wins every maximum, so one pass sees all three
    if np.isfinite(best).all():
        return
    n_bad = int(np.isnan(logits).sum() + np.isposinf(logits).sum())
    found = f"{n_bad} of {logits.size} logits are NaN or +inf" if n_bad else "every logit is -inf"
    raise NonFiniteError(
        f"the model computed non-finite logits ({found}); "
        "its weights are damaged or its arithmetic overflowed"
    )
