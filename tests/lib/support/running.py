"""Run a model on a backend without the engine: whole, row by row, or in any cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Backend, HostOutput, SlotImage, State, StateRoom
from nextn.core.backend.layers import Floats, KvTypes
from nextn.core.backend.step import Step, StepPart, build_step, pending_accepted_after
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.models.model import Model

PAGES = range(16)
PAGE_LEN = 16
MAX_ROWS = 160


@dataclass
class Machine:
    """A loaded model, a state and the compiled forward pass; several sequences may share it."""

    model: Model
    backend: Backend
    window: int = 4
    taps: frozenset[str] = frozenset()
    n_slots: int = 4
    state: State = None
    run: Callable[[Step], HostOutput] = field(init=False)

    def __post_init__(self) -> None:
        if self.state is None:
            self.state = self.backend.new_state(
                self.model.state_shape,
                StateRoom(n_pages=64, page_len=PAGE_LEN, n_slots=self.n_slots, window=self.window),
            )
        self.run = self.backend.compile(
            self.model.forward, self.state, max_rows=MAX_ROWS, taps=self.taps
        )


@dataclass
class Running:
    """One sequence of a machine."""

    machine: Machine
    slot: int = 0
    pages: Sequence[int] = PAGES
    n_tokens: int = 0
    n_pending_accepted: int = 0

    def piece(self, tokens: Sequence[int]) -> StepPart:
        n = len(tokens)
        return StepPart(
            tokens, self.n_tokens, self.pages, self.slot, self.n_pending_accepted, n_out=n
        )

    def forward(self, tokens: Sequence[int]) -> HostOutput:
        output = self.machine.run(build_step([self.piece(tokens)]))
        taps = {name: rows.copy() for name, rows in output.taps.items()}
        return HostOutput(output.logits.copy(), taps)

    def accept(self, n_rows: int, n_valid: int) -> None:
        """Of the rows just run, the first `n_valid` hold."""
        self.n_tokens += n_valid
        self.n_pending_accepted = pending_accepted_after(
            self.n_pending_accepted, n_rows, n_valid, self.machine.window
        )

    def append(self, tokens: Sequence[int]) -> Floats:
        logits = self.forward(tokens).logits
        self.accept(len(tokens), len(tokens))
        return logits

    def append_cut(self, tokens: Sequence[int], lengths: Sequence[int]) -> Floats:
        ends = np.cumsum([0, *lengths])
        assert ends[-1] == len(tokens)
        return np.concatenate([self.append(tokens[a:b]) for a, b in pairwise(ends)])

    def image(self) -> SlotImage:
        return self.machine.backend.save_slot(
            self.machine.state, self.slot, self.pages, self.n_tokens, self.n_pending_accepted
        )


def load(path: Path, device: str = "torch", threads: int | None = None) -> tuple[Model, Backend]:
    """`device` may name a type of the cache, too: "cpu q8_0"."""
    device, _, kind = device.partition(" ")
    backend = create_backend(device, threads, KvTypes.parse(kind or "f16", kind or "f16"))
    return build_model(open_gguf(path), backend), backend


def start(path: Path, device: str = "torch", *, window: int = 4) -> Running:
    """A fresh sequence of a freshly loaded file."""
    return Running(Machine(*load(path, device), window=window))


def random_tokens(n: int, seed: int = 0, n_vocab: int = 512) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, n_vocab, n).tolist()
    return tokens
