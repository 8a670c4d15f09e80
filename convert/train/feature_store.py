"""The rows of a target that its drafter reads, of all texts, on disk in half precision."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from ...core.backend.step import Ints
from ...core.runtime import Runtime
from .draft_trainer import ReadText
from .text_store import StoredText
from .training_target import balance, read_features
from .work_folder import write_whole

N_BALANCED: Final = 8  # texts from which the lengths of rows are measured
BYTES: Final = 2  # of a number


class FeatureStore:
    """Rows are stored times the factors `scale`: those of some models exceed half precision."""

    def __init__(self, folder: Path, layers: Sequence[int], width: int) -> None:
        self._rows, self._scale = folder / "features.f16", folder / "scale.json"
        self._layers, self._width = layers, width
        self._n_features = len(layers) * width
        self.scale = torch.ones(self._n_features)
        if self._scale.exists():
            self.scale = torch.tensor(json.loads(self._scale.read_bytes()))

    @staticmethod
    def row_bytes(n_features: int) -> int:
        return BYTES * n_features

    def add_missing(
        self,
        runtime: Runtime,
        texts: Sequence[StoredText],
        tokens: Ints,
        show: Callable[[int], None],
    ) -> None:
        """Read the texts whose rows are not there. `show` gets the number of tokens that are."""
        split = [tokens[text.at : text.at + text.n].tolist() for text in texts]
        if not self._scale.exists():
            first = list(read_features(runtime, self._layers, split[:N_BALANCED]))
            self.scale = balance(first, self._width)
            write_whole(self._scale, json.dumps(self.scale.tolist()).encode())
        n_there = self._n_there()
        ends = [text.at + text.n for text in texts]
        n_done = sum(end <= n_there for end in ends)
        n_rows = ends[n_done - 1] if n_done else 0
        with self._rows.open("ab") as file:
            file.truncate(n_rows * self.row_bytes(self._n_features))
            if n_done == len(texts):
                return
            rows = read_features(runtime, self._layers, split[n_done:], self.scale)
            for end, each in zip(ends[n_done:], rows, strict=True):
                file.write(each.numpy().tobytes())
                show(end)

    def _n_there(self) -> int:
        if not self._rows.exists():
            return 0
        return self._rows.stat().st_size // self.row_bytes(self._n_features)

    def read(self, texts: Sequence[StoredText], tokens: Ints) -> list[ReadText]:
        """Texts with their rows, which are read from the disk where they are used."""
        n = texts[-1].at + texts[-1].n
        # A copy where it is written to: torch warns of arrays that are for reading alone.
        mapped = np.memmap(self._rows, np.float16, mode="c", shape=(n, self._n_features))
        return [
            ReadText(
                torch.from_numpy(tokens[text.at : text.at + text.n].astype(np.int64)),
                torch.from_numpy(mapped[text.at : text.at + text.n]),
                text.first,
                self.scale,
            )
            for text in texts
        ]
