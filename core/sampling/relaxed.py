"""Relaxed acceptance: a draft token that the target finds nearly as good as its best may stay.

The rule is that of TensorRT-LLM. Lossy: the text is not the one that the target would have
written, so this is for thoughts that no reader sees.
"""

from __future__ import annotations

from collections.abc import Sequence

from .candidates import Candidates, weights


def is_nearly_best(candidates: Candidates, token: int, top_n: int, delta: float) -> bool:
    """One of the `top_n` best, of equals the lower ids, and its probability no more than `delta`
    below that of the best."""
    ids, logits, _ = candidates
    rows = (ids == token).nonzero()[0]
    if not rows.size:
        return False
    own = logits[rows[0]]
    n_better = int((logits > own).sum()) + int(((logits == own) & (ids < token)).sum())
    if n_better >= top_n:
        return False
    scaled = weights(candidates)
    return bool(scaled[rows[0]] >= 1.0 - delta * scaled.sum())


class Phase:
    """Whether a text is between two marks. It reads each token once."""

    def __init__(self, opening: int, closing: int) -> None:
        self._opening, self._closing = opening, closing
        self._n_seen, self._is_open = 0, False

    def drop(self, n: int) -> None:
        """So many of the tokens that it has read are no longer there."""
        self._n_seen -= n

    def is_open(self, tokens: Sequence[int]) -> bool:
        """After these tokens, which begin with those of the call before."""
        for token in tokens[self._n_seen :]:
            if token == self._opening:
                self._is_open = True
            elif token == self._closing:
                self._is_open = False
        self._n_seen = len(tokens)
        return self._is_open
