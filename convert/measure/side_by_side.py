"""Both models over the same chunks, in step: the logits of a few rows are in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ...core.backend.layers import Floats
from ...core.errors import ModelError, NonFiniteError
from ...core.runtime import PROMPT_ROWS, Runtime
from ...core.sampling.finite import check_finite
from .divergence import ScoredTokens, compare_rows
from .text_chunks import first_scored_row

Progress = Callable[[int, int], None]  # chunks that are done, of all

_LOGITS: Final = 1 << 25  # numbers that each model leaves at once
_MIN_ROWS: Final = 16


def score(
    measured: Runtime, base: Runtime, chunks: Sequence[Sequence[int]], progress: Progress
) -> ScoredTokens:
    """Scores of the second half of each chunk: arrays of (chunks, tokens)."""
    if measured.n_vocab != base.n_vocab:
        raise ModelError(
            f"the models have logits of {measured.n_vocab} and {base.n_vocab} tokens: "
            "they cannot be compared"
        )
    n_ctx = len(chunks[0])
    n_rows = min(PROMPT_ROWS, max(_MIN_ROWS, _LOGITS // base.n_vocab))
    readers = [runtime.reader(n_ctx, n_rows) for runtime in (measured, base)]
    first, scored = first_scored_row(n_ctx), []
    for n_done, chunk in enumerate(chunks):
        progress(n_done, len(chunks))
        targets, pieces = np.array(chunk[first + 1 :]), []
        # What the last token's row says comes after the chunk.
        rows = zip(*(reader.logits(chunk[:-1], first) for reader in readers), strict=True)
        for logits, base_logits in rows:
            _check("the measured model", logits)
            _check("the base", base_logits)
            n = len(logits)
            pieces.append(compare_rows(logits, base_logits, targets[:n]))
            targets = targets[n:]
        scored.append(ScoredTokens.joined(pieces))
    progress(len(chunks), len(chunks))
    return ScoredTokens(*map(np.stack, zip(*scored, strict=True)))


def _check(name: str, logits: Floats) -> None:
    try:
        check_finite(logits)
    except NonFiniteError as error:
        raise NonFiniteError(f"{name}: {error}") from None
