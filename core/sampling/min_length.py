"""`MinLength`: tokens that end a text are forbidden until it has a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .grammar import Grammar


class MinLength(Grammar):
    """A rule that samplers and drafters ask as they ask a grammar."""

    def __init__(self, n_min: int, ending: frozenset[int]) -> None:
        self._n_min, self._ending = n_min, ending
        self._banned = np.array(sorted(ending), np.int64)
        self.accepted: list[int] = []
        self.notes = ()

    @property
    def is_complete(self) -> bool:
        return len(self.accepted) >= self._n_min

    def validate(self, tokens: Sequence[int]) -> int:
        for i, token in enumerate(tokens[: max(self._n_min - len(self.accepted), 0)]):
            if token in self._ending:
                return i
        return len(tokens)

    def mask(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.is_complete:
            return logits
        masked = logits.copy()
        masked[self._banned[self._banned < logits.size]] = -np.inf
        return masked

    def accept(self, token: int) -> None:
        if not self.allowed(token):
            raise ValueError(f"token {token} would end the text before it is long enough")
        self.accepted.append(token)

    def copy(self) -> MinLength:
        return self.restart(self.accepted)

    def restart(self, tokens: Sequence[int]) -> MinLength:
        twin = MinLength(self._n_min, self._ending)
        twin.accepted = list(tokens)
        return twin
