"""Two models' distributions of the next token, row by row, in double precision.

KL is that of the base's distribution to the measured model's: what coding by the second costs, in
nats a token, where the first is true.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ...core.errors import NonFiniteError

Floats = NDArray[np.float64]
Logits = NDArray[np.float32]

_AT_ONCE: Final = 1 << 20  # numbers of a matrix in double precision


class ScoredTokens(NamedTuple):
    """One number for each token that was scored; arrays of one shape."""

    log_p: Floats  # natural logarithm of the token's probability, by the measured model
    base_log_p: Floats
    kl: Floats
    same_top: NDArray[np.bool_]  # both models have the same likeliest token

    @classmethod
    def joined(cls, pieces: list[Self]) -> Self:
        return cls(*(np.concatenate(each) for each in zip(*pieces, strict=True)))

    @property
    def delta_p(self) -> Floats:
        """The token's probability by the measured model, minus that by the base."""
        delta: Floats = np.exp(self.log_p) - np.exp(self.base_log_p)
        return delta


def compare_rows(logits: Logits, base: Logits, targets: NDArray[np.int64]) -> ScoredTokens:
    """`logits`, `base`: (R, V), of both models behind the same tokens. `targets`: (R,), the tokens
    that come next in the text."""
    n_rows = max(1, _AT_ONCE // logits.shape[1])
    return ScoredTokens.joined([
        _compare(logits[i : i + n_rows], base[i : i + n_rows], targets[i : i + n_rows])
        for i in range(0, len(targets), n_rows)
    ])  # fmt: skip


def _compare(logits: Logits, base: Logits, targets: NDArray[np.int64]) -> ScoredTokens:
    log_p, base_log_p = log_softmax(logits), log_softmax(base)
    at = np.arange(len(targets)), targets
    p = np.exp(base_log_p)
    # Masked tokens are -inf in both, and have no part in the sum.
    terms = np.subtract(base_log_p, log_p, out=np.zeros_like(p), where=p > 0)
    # Rounding can make a sum of nearly nothing negative, which KL never is.
    kl = np.maximum(np.einsum("rv,rv->r", p, terms), 0.0)
    found = ScoredTokens(
        log_p[at], base_log_p[at], kl, logits.argmax(axis=1) == base.argmax(axis=1)
    )
    if not all(np.isfinite(each).all() for each in found):
        raise NonFiniteError("a model gives no probability at all to a token that the text needs")
    return found


def log_softmax(logits: Logits) -> Floats:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
