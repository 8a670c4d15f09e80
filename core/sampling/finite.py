"""No token comes out of broken numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..backend.interface import MAXIMA_BLOCK
from ..errors import NonFiniteError


def check_finite(logits: NDArray[np.float32]) -> None:
    """Refuse NaN, +inf and rows of nothing but -inf; single -inf entries are a mask."""
    best = logits.max(axis=-1)  # NaN wins every maximum, so one pass sees all three
    if not np.isfinite(best).all():
        raise non_finite(logits)


def check_row(logits: NDArray[np.float32], maxima: NDArray[np.float32] | None) -> None:
    """`check_finite` of one row, whose block maxima may be known."""
    if not math.isfinite((logits if maxima is None else maxima).max()):
        raise non_finite(logits)


def best_token(logits: NDArray[np.float32], maxima: NDArray[np.float32] | None = None) -> int:
    """The lowest id among the best, of one row, with the same refusals: one pass for both."""
    if maxima is None:
        best = int(logits.argmax())
    else:  # the first of the best blocks holds the lowest id
        start = int(maxima.argmax()) * MAXIMA_BLOCK
        best = start + int(logits[start : start + MAXIMA_BLOCK].argmax())
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
