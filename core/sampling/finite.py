"""No token comes out of broken numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..errors import NonFiniteError


def check_finite(logits: NDArray[np.float32]) -> None:
    """Refuse NaN, +inf and rows of nothing but -inf; single -inf entries are a mask."""
    best = logits.max(axis=-1)  # NaN wins every maximum, so one pass sees all three
    if not np.isfinite(best).all():
        raise non_finite(logits)


def best_token(logits: NDArray[np.float32]) -> int:
    """The lowest id among the best, of one row, with the same refusals: one pass for both."""
    best = int(logits.argmax())
    if not math.isfinite(logits.item(best)):
        raise non_finite(logits)
    return best


def non_finite(logits: NDArray[np.float32]) -> NonFiniteError:
    n_bad = int(np.isnan(logits).sum() + np.isposinf(logits).sum())
    found = f"{n_bad} of {logits.size} logits are NaN or +inf" if n_bad else "every logit is -inf"
    return NonFiniteError(
        f"the model computed non-finite logits ({found}); "
        "its weights are damaged or its arithmetic overflowed"
    )
