"""How often a model has written each token, kept per model between runs.

A draft head over only the tokens that this model really writes costs a fraction of a whole one. The
counts hold no text: one number per token id. `SPEC_TOKEN_COUNTS=0` disables them.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..folders import cache_root

logger = logging.getLogger(__name__)
Counts = NDArray[np.int64]

_MAGIC: Final = b"spec token counts 1\n"
_WORTH_SAVING: Final = 64  # tokens


class TokenCounts:
    """Of one model. Reading and writing never fail: without a file there are no counts."""

    def __init__(self, fingerprint: str, n_vocab: int, folder: Path | None = None) -> None:
        self._n_vocab = n_vocab
        self._path = (folder or cache_root() / "token-counts") / f"{fingerprint}.counts"
        self._is_kept = os.environ.get("SPEC_TOKEN_COUNTS") != "0"
        self._fresh: dict[int, int] = {}
        self._n_fresh = 0

    def add(self, tokens: Iterable[int]) -> None:
        if self._is_kept:
            fresh = self._fresh
            for token in tokens:
                fresh[token] = fresh.get(token, 0) + 1
                self._n_fresh += 1

    def read(self) -> Counts:
        """All zero if they are not kept, or there is no valid file."""
        if not self._is_kept:
            return np.zeros(self._n_vocab, np.int64)
        with suppress(OSError):
            data = self._path.read_bytes()
            if data.startswith(_MAGIC) and len(data) == len(_MAGIC) + 8 * self._n_vocab:
                counts = np.frombuffer(data, "<i8", offset=len(_MAGIC)).astype(np.int64)
                return np.maximum(counts, 0)
        return np.zeros(self._n_vocab, np.int64)

    def save(self) -> None:
        """Add new counts to the file. Of two processes at once, one may lose its share."""
        if self._n_fresh < _WORTH_SAVING:
            return
        counts = self.read()
        ids = np.fromiter(self._fresh, np.int64, len(self._fresh))
        counts[ids] += np.fromiter(self._fresh.values(), np.int64, len(self._fresh))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, delete=False) as file:
                file.write(_MAGIC + counts.astype("<i8").tobytes())
            os.replace(file.name, self._path)
        except OSError as error:
            logger.info("token counts were not kept: %s", error)
            return
        self._fresh, self._n_fresh = {}, 0
