"""What a step launches and moves, counted without running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from support.llama_quantize import mixture_types
from support.random_shapes import Sizes, tensor_shapes
from support.sparse_file import write_sparse

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.cuda.state import CudaState
from nextn.core.backend.interface import Forward, Ops, Rows, State, StateRoom
from nextn.core.backend.layers import KvTypes
from nextn.core.backend.step import Step, StepPart, build_step, pending_accepted_after
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.models.block import Block
from nextn.core.models.model import Model
from nextn.core.state.sizes import PAGE_LEN, WINDOW
from nextn.cuda_kernels.kernel import Argument, Dim, Kernel

from .counting import (
    FACTORS,
    HEADER,
    KEYS_VALUES,
    RING,
    SCRATCH,
    STATE,
    Bytes,
    Routing,
    count,
    of_cublas,
)
from .shadows import ROWS, Shadow, ShadowDevice, ShadowUploads

CUBLAS = "cuBLAS"
COPIED = 4.3e12  # bytes in a second of a large copy on an H200, which floors are reckoned with
_STATE_ARRAYS = {
    "state": STATE, "ring": RING, "header": HEADER,
    "keys": FACTORS, "updates": FACTORS, "decays": FACTORS,
}  # fmt: skip


@dataclass
class Line:
    """All launches of one kernel."""

    launches: float = 0.0
    bytes: Bytes = field(default_factory=Bytes)
    flops: float = 0.0  # of cuBLAS


@dataclass
class Account:
    """Of a step; averages where steps differ that follow each other."""

    lines: dict[str, Line] = field(default_factory=dict)
    sent: float = 0.0  # bytes from the host to the device within the step
    fetched: float = 0.0
    copies: float = 0.0  # of both kinds

    @property
    def launches(self) -> float:
        return sum(line.launches for line in self.lines.values())

    @property
    def flops(self) -> float:
        return sum(line.flops for line in self.lines.values())

    @property
    def total(self) -> Bytes:
        found = Bytes()
        for line in self.lines.values():
            found += line.bytes
        return found

    @property
    def floor_s(self) -> float:
        return self.total.from_memory / COPIED

    def add(self, other: Account, share: float) -> None:
        for name, line in other.lines.items():
            own = self.lines.setdefault(name, Line())
            own.launches += share * line.launches
            own.bytes += line.bytes * share
            own.flops += share * line.flops
        self.sent += share * other.sent
        self.fetched += share * other.fetched
        self.copies += share * other.copies


class Ledger:
    """A model in its real size, without numbers."""

    def __init__(self, sizes: Sizes, mixture: str = "Q4_K_M", kv_types: str = "f16") -> None:
        self.device = ShadowDevice()
        self.backend = CudaBackend(self.device, KvTypes.parse(kv_types, kv_types))
        self.backend.uploads = ShadowUploads(self.device)
        self.routing = Routing(max(1, sizes.n_experts), max(1, sizes.n_experts_used))
        self.sizes = sizes
        self.model = _model(sizes, mixture, self.backend)
        self.device.holds = ROWS
        self._account: Account | None = None
        self.device.launcher.note, self.device.note_product = self._note, self._note_product

    def new_state(self, n_ctx: int, n_slots: int, window: int = WINDOW) -> CudaState:
        room = StateRoom(n_slots * -(-n_ctx // PAGE_LEN), PAGE_LEN, n_slots, window)
        state = self.backend.new_state(self.model.state_shape, room)
        tell_apart(state)
        return state

    def counted(self, work: Callable[[], Any]) -> Account:
        """All that `work` launches and copies."""
        made = self._account = Account()
        device = self.device
        before = device.bytes_sent, device.bytes_fetched, device.n_copies
        work()
        made.sent = device.bytes_sent - before[0]
        made.fetched = device.bytes_fetched - before[1]
        made.copies = device.n_copies - before[2]
        self._account = None
        return made

    def step(self, n_rows: int, context: int = 1024, n_sequences: int = 1) -> Account:
        """Of the target, each row with logits, every draft accepted: the average over steps that
        follow each other, since not all of them store the recurrent states."""
        return self._steps(self.model.forward, n_rows, context, n_sequences)

    def draft_step(self, context: int = 1024, n_sequences: int = 1) -> Account:
        """Of the MTP head: one row of each sequence."""
        (head,) = self.model.nextn
        return self._steps(head.forward, 1, context, n_sequences, width=self.sizes.n_embd)

    def prompt(self, n_rows: int, past: int = 0) -> Account:
        """A piece of a prompt."""
        state = self.new_state(past + n_rows, 1)
        run = self.backend.compile(self.model.forward, state, max_rows=n_rows)
        pages = range(-(-(past + n_rows) // PAGE_LEN))
        step = build_step([StepPart([0] * n_rows, past, pages, n_pending_accepted=int(past > 0))])
        run(step)
        self.tell_scratch()
        return self.counted(partial(run, step))

    def _steps(
        self, forward: Forward, n_rows: int, context: int, n_sequences: int, width: int = 0
    ) -> Account:
        state = self.new_state(context + n_rows, n_sequences)
        run = self.backend.compile(forward, state, max_rows=n_rows * n_sequences)
        cycle = replays(n_rows, state.window)
        mean = Account()
        for replay in cycle:
            step = _step(n_rows, context, n_sequences, replay, width)
            run(step)  # what is made at first use is not part of a step
            self.tell_scratch()
            mean.add(self.counted(partial(run, step)), 1 / len(cycle))
        return mean

    def layers(self, n_rows: int = 1) -> list[Account]:
        """Of each layer of the trunk by itself."""
        made: list[Account] = []
        blocks = self.model.blk

        def apart(block: Block) -> Block:
            def call(ops: Ops, x: Rows, step: Step, state: State) -> Rows:
                before = self._account
                made.append(self.counted(lambda: found.append(block(ops, x, step, state))))
                self._account = before
                return found.pop()

            return call

        found: list[Rows] = []
        self.model.blk = [apart(block) for block in blocks]
        self.step(n_rows)
        self.model.blk = blocks
        return made[-len(blocks) :]

    def tell_scratch(self) -> None:
        """What only one launch writes and reads."""
        for array in self.backend.ops._memory._kept.values():
            array.holds = SCRATCH
        for space in self.backend.ops._experts._spaces.values():
            space.sums.holds = space.arrivals.holds = SCRATCH

    def _note_product(self, a: Shadow, w: Shadow, out: Shadow) -> None:
        if self._account is not None:
            line = self._account.lines.setdefault(CUBLAS, Line())
            line.launches += 1
            line.bytes += of_cublas(a, w, out)
            line.flops += 2.0 * a.shape[0] * a.shape[1] * w.shape[0]

    def _note(self, kernel: Kernel, grid: Dim, arguments: Sequence[Argument]) -> None:
        if self._account is None:
            return
        line = self._account.lines.setdefault(kernel.name, Line())
        line.launches += 1
        try:
            line.bytes += count(kernel.name, arguments, grid, self.routing)
        except ValueError as error:
            raise ValueError(f"{kernel.name}: {error}; give it one in counting.py") from None


def tell_apart(state: CudaState) -> None:
    """Which arrays of a state are what."""
    for kv in state.kv:
        for array in (kv.keys, kv.values, kv.key_scales, kv.value_scales):
            if array is not None:
                array.holds = KEYS_VALUES
    if state._delta is not None:
        for name, holds in _STATE_ARRAYS.items():
            getattr(state._delta, name).holds = holds


def replays(n_rows: int, window: int) -> list[int]:
    """Factors that are pending before each of the steps that repeat, if all rows hold."""
    replay, seen = n_rows, list[int]()
    while replay not in seen:
        seen.append(replay)
        replay = pending_accepted_after(replay, n_rows, n_rows, window)
    return seen[seen.index(replay) :]


def _step(n_rows: int, context: int, n_sequences: int, replay: int, width: int) -> Step:
    pages = -(-(context + n_rows) // PAGE_LEN)
    pieces = [
        StepPart([0] * n_rows, context, range(b * pages, (b + 1) * pages), b, replay, n_out=n_rows)
        for b in range(n_sequences)
    ]
    hidden = np.zeros((n_rows * n_sequences, width), np.float32) if width else None
    return build_step(pieces, hidden)


def _model(sizes: Sizes, mixture: str, backend: CudaBackend) -> Model:
    with TemporaryDirectory() as folder:
        kinds = mixture_types(tensor_shapes(sizes), mixture)
        path = write_sparse(Path(folder) / "shapes.gguf", sizes, kinds, {})
        with open_gguf(path) as file:
            return build_model(file, backend)
