"""Run a model on a backend without the engine: whole, row by row, or in any cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from specdec.core.backend import create_backend
from specdec.core.backend.interface import Backend, Output, State
from specdec.core.backend.layers import Floats
from specdec.core.backend.step import Piece, build_step
from specdec.core.gguf.reader import open_gguf
from specdec.core.models import build_model
from specdec.core.models.base import Model

PAGES = range(16)
PAGE_LEN = 8


@dataclass
class Running:
    """One sequence on a fresh state."""

    model: Model
    backend: Backend
    window: int = 4
    state: State = None
    n_tokens: int = 0
    replay: int = field(default=0)
    slot: int = 0
    pages: Sequence[int] = PAGES

    def __post_init__(self) -> None:
        if self.state is None:
            self.state = new_state(self.model, self.backend, self.window)

    def forward(self, tokens: Sequence[int], taps: frozenset[str] = frozenset()) -> Output:
        piece = Piece(tokens, self.n_tokens, self.pages, self.slot, self.replay, n_out=len(tokens))
        return self.model.forward(self.backend, build_step([piece]), self.state, taps)

    def accept(self, n_rows: int, n_true: int) -> None:
        """Of the rows just run, the first `n_true` hold."""
        self.n_tokens += n_true
        self.replay = n_true - max(0, n_rows - self.window)

    def run(self, tokens: Sequence[int]) -> Floats:
        logits = self.backend.to_host(self.forward(tokens).logits)
        self.accept(len(tokens), len(tokens))
        return logits

    def run_cut(self, tokens: Sequence[int], lengths: Sequence[int]) -> Floats:
        ends = np.cumsum([0, *lengths])
        assert ends[-1] == len(tokens)
        return np.concatenate([self.run(tokens[a:b]) for a, b in pairwise(ends)])


def load(path: Path, device: str = "torch") -> tuple[Model, Backend]:
    backend = create_backend(device)
    return build_model(open_gguf(path), backend), backend


def new_state(model: Model, backend: Backend, window: int = 4, n_slots: int = 2) -> State:
    return backend.new_state(
        model.state_shape, n_pages=64, page_len=PAGE_LEN, n_slots=n_slots, window=window
    )


def random_tokens(n: int, seed: int = 0, n_vocab: int = 512) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, n_vocab, n).tolist()
    return tokens
