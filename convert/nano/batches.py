"""Rows of tokens for training: which ones come at step n depends on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from ...core.errors import ConfigError
from .samples import Tokens


@dataclass
class Position:
    epoch: int = 0
    row: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Batches:
    """An epoch is one long text, cut into rows that share `ahead` tokens, in random order."""

    def __init__(
        self,
        make_epoch: Callable[[int], Tokens],
        *,
        length: int,
        ahead: int,
        rows: int,
        seed: int,
        position: Position | None = None,
    ) -> None:
        self._make_epoch = make_epoch
        self._length, self._ahead, self._rows, self._seed = length, ahead, rows, seed
        self.position = position or Position()
        self._loaded = -1
        self._tokens = np.zeros(0, np.uint16)
        self._order = np.zeros(0, np.intp)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield self._next()

    def _next(self) -> Tensor:
        """(rows, length + ahead); the last rows of an epoch that fill no batch are left out."""
        self._load()
        if self.position.row + self._rows > len(self._order):
            self.position = Position(self.position.epoch + 1)
            self._load()
        first = self.position.row
        starts = self._order[first : first + self._rows] * self._length
        self.position.row += self._rows
        width = self._length + self._ahead
        batch = np.stack([self._tokens[start : start + width] for start in starts])
        return torch.from_numpy(batch.astype(np.int64))

    def _load(self) -> None:
        epoch = self.position.epoch
        if epoch == self._loaded:
            return
        self._tokens = self._make_epoch(epoch)
        n_rows = (len(self._tokens) - self._ahead) // self._length
        if n_rows < self._rows:
            raise ConfigError(f"{len(self._tokens)} tokens are too few for one batch")
        self._order = np.random.default_rng([self._seed, epoch]).permutation(n_rows)
        self._loaded = epoch
