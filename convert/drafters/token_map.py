"""`d2t`: which token of the target each row of a short head stands for.

GGUF has the tokens themselves. Checkpoints have how much larger each is than its row's number.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DRAFT_TO_TARGET: Final = "d2t"
Ids = NDArray[np.int64]


def target_tokens(offsets: NDArray[Any]) -> Ids:
    """From the numbers of a checkpoint. They may wrap; `map_faults` finds what comes of it."""
    found = offsets.reshape(-1).astype(np.int64)
    with np.errstate(over="ignore"):
        return found + np.arange(len(found), dtype=np.int64)


def map_faults(tokens: Ids, n_vocab: int) -> list[str]:
    """`n_vocab`: of the target; 0 where that is not known."""
    if not len(tokens):
        return ["d2t is empty: no token can be drafted"]
    high = n_vocab or np.iinfo(np.int32).max
    wrong = np.flatnonzero((tokens < 0) | (tokens >= high))
    if wrong.size:
        at = int(wrong[0])
        return [f"d2t[{at}] is {tokens[at]}, expected a token of the target, 0 to {high - 1}"]
    found, first = np.unique(tokens, return_index=True)
    if len(found) < len(tokens):
        again = int(np.setdiff1d(np.arange(len(tokens)), first)[0])
        return [f"d2t names token {tokens[again]} twice, the second time in row {again}"]
    return []
