"""`RankedBackend`: a backend for a model whose layers several devices hold.

What rank 0 holds runs on its own backend; so does every other model, such as a draft model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import replace

from ..backend.interface import (
    Backend,
    BlockDraft,
    DraftLoop,
    DraftLoopPlan,
    Forward,
    HostOutput,
    Relayed,
    Rows,
    Run,
    RunRows,
    SlotImage,
    State,
    StateRoom,
    Taps,
)
from ..backend.layers import Floats, Matrix, MatrixPart, SplitShape, StateShape, Vector
from ..backend.step import Step
from ..models.model import Model, block_input, check_taps
from .images import join_images, split_image

_NO_ROWS: Final = np.zeros(0, np.int32)


@dataclass(eq=False, frozen=True)
class RankedState:
    parts: Sequence[State]  # by rank
    shape: SplitShape


class RankedBackend(Backend):
    def __init__(self, backends: Sequence[Backend], devices: Sequence[str], name: str) -> None:
        self.ranks, self.inner = backends, backends[0]
        self.ops = self.inner.ops
        self.devices, self.name = devices, name
        self.details = ", ".join(dict.fromkeys(filter(None, (each.details for each in backends))))
        self.n_ranks = len(backends)
        self.models: Sequence[Model] = ()  # by rank: the layers that it holds
        self.prompt_chunk = self.inner.prompt_chunk
        self.batch_invariant = self.inner.batch_invariant
        self.turns_by_axes = self.inner.turns_by_axes
        self.looks_ahead = self.inner.looks_ahead
        self.runs_towers = self.inner.runs_towers
        self.frees_windows = self.inner.frees_windows
        self.trunk = StateShape(())

    @property
    def state_format(self) -> str:
        return self.inner.state_format

    @contextmanager
    def on(self, rank: int) -> Iterator[Backend]:
        """The backend of a rank, whose device is the current one meanwhile."""
        self.ranks[rank].activate()
        try:
            yield self.ranks[rank]
        finally:
            self.inner.activate()

    # weights

    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        return self.inner.matrix_bytes(parts)

    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix:
        return self.inner.matrix(parts)

    def vector(self, values: Floats) -> Vector:
        return self.inner.vector(values)

    def weight_bytes(self) -> int:
        return sum(each.weight_bytes() for each in self.ranks)

    def free_device_bytes(self) -> int | None:
        """Room for state as if all were one device: what fits everywhere if it is shared as the
        layers are."""
        room = []
        for rank, (each, share) in enumerate(zip(self.ranks, self._shares(), strict=True)):
            left = each.free_device_bytes()
            if left is None:
                return None
            if rank == 0:
                left = max(0, left - self.reserved)
            if share:
                room.append(left / share)
        return int(min(room, default=0.0)) + self.reserved

    def left_beside(self, state_bytes: int, available: int) -> int:
        """Other models are rank 0's, beside its share of the state."""
        left = self.inner.free_device_bytes()
        if left is None:
            return super().left_beside(state_bytes, available)
        return max(0, left - int(self._shares()[0] * state_bytes))

    def _shares(self) -> list[float]:
        """Of a model's state, by rank: of its pages or its slots, whichever is more."""
        shape = self.trunk
        if not isinstance(shape, SplitShape):
            return [1.0] * self.n_ranks
        whole = self._sizes(shape)
        parts = [self._sizes(shape.of_rank(rank)) for rank in range(self.n_ranks)]
        return [
            max((part / all_ for part, all_ in zip(sizes, whole, strict=True) if all_), default=0)
            for sizes in parts
        ]

    def _sizes(self, shape: StateShape) -> tuple[int, int]:
        return self.inner.state_bytes(shape, page_len=64, window=16)

    # running

    def compile(
        self, forward: Forward, state: State, *, max_rows: int, taps: Taps = frozenset()
    ) -> Run:
        if not isinstance(forward, Relayed):
            return self.inner.compile(forward, _own(state), max_rows=max_rows, taps=taps)
        assert isinstance(state, RankedState), "made for the same model"
        check_taps(taps, self.models[0].taps)
        passes = [forward.before, *(model.pass_on for model in self.models[1:])]
        runs = []
        for rank, (passed, part) in enumerate(zip(passes, state.parts, strict=True)):
            own = taps & {block_input(i) for i in self.models[rank].share.blocks}
            with self.on(rank) as backend:
                runs.append(backend.compile_rows(passed, part, max_rows=max_rows, taps=own))
        behind = taps - {block_input(i) for model in self.models for i in model.share.blocks}
        after = self.inner.compile(forward.after, state.parts[0], max_rows=max_rows, taps=behind)
        return _Relaying(self, runs, after)

    def compile_rows(
        self, forward: Forward, state: State, *, max_rows: int, taps: Taps = frozenset()
    ) -> RunRows:
        return self.inner.compile_rows(forward, _own(state), max_rows=max_rows, taps=taps)

    def compile_draft_loop(self, forward: Forward, state: State, plan: DraftLoopPlan) -> DraftLoop:
        """MTP heads and draft models are rank 0's."""
        assert not isinstance(forward, Relayed), "one rank holds all drafters"
        return self.inner.compile_draft_loop(forward, _own(state), plan)

    def compile_block_draft(
        self, forward: Forward, state: State, plan: DraftLoopPlan
    ) -> BlockDraft:
        assert not isinstance(forward, Relayed), "one rank holds all drafters"
        return self.inner.compile_block_draft(forward, _own(state), plan)

    def close(self) -> None:
        for rank in reversed(range(self.n_ranks)):
            with self.on(rank) as backend:
                backend.close()

    # state

    def new_state(self, shape: StateShape, room: StateRoom) -> State:
        if not isinstance(shape, SplitShape):
            return self.inner.new_state(shape, room)
        parts = []
        for rank in range(self.n_ranks):
            with self.on(rank) as backend:
                parts.append(backend.new_state(shape.of_rank(rank), room))
        return RankedState(parts, shape)

    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        return self.inner.state_bytes(shape, page_len=page_len, window=window)

    def copy_pages(
        self,
        state: State,
        sources: Sequence[int],
        targets: Sequence[int],
        *,
        windowed: bool = False,
    ) -> None:
        for backend, part in self._parts(state):
            backend.copy_pages(part, sources, targets, windowed=windowed)

    def save_slot(
        self,
        state: State,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        images = [
            backend.save_slot(part, slot, pages, n_cells, n_pending, windowed_pages)
            for backend, part in self._parts(state)
        ]
        return join_images(images, state.shape) if isinstance(state, RankedState) else images[0]

    def load_slot(
        self,
        state: State,
        slot: int,
        pages: Sequence[int],
        image: SlotImage,
        windowed_pages: Sequence[int] = (),
    ) -> None:
        images = [image]
        if isinstance(state, RankedState):
            images = split_image(image, state.shape, self.n_ranks)
        for own, (backend, part) in zip(images, self._parts(state), strict=True):
            backend.load_slot(part, slot, pages, own, windowed_pages)

    def copy_slot(self, state: State, source: int, target: int, n_pending: int) -> None:
        for backend, part in self._parts(state):
            backend.copy_slot(part, source, target, n_pending)

    def _parts(self, state: State) -> Iterator[tuple[Backend, State]]:
        """Each rank's backend and part of the state; of another model only rank 0's."""
        if not isinstance(state, RankedState):
            yield self.inner, state
            return
        for rank, part in enumerate(state.parts):
            with self.on(rank) as backend:
                yield backend, part


def _own(state: State) -> State:
    """Rank 0's part."""
    return state.parts[0] if isinstance(state, RankedState) else state


class _Relaying:
    """A forward pass: the layers of each rank, then rank 0's head."""

    def __init__(self, backend: RankedBackend, runs: Sequence[RunRows], after: Run) -> None:
        self._backend, self._runs, self._after = backend, runs, after

    def __call__(self, step: Step) -> HostOutput:
        passing, taps = replace(step, out_rows=_NO_ROWS, requests=None), dict[str, Floats]()
        rows: Rows = None
        for rank, run in enumerate(self._runs):
            with self._backend.on(rank) as backend:
                if rank:
                    passing = replace(passing, received=backend.ops.take_rows(rows))
                left = run(passing)
                rows = left.logits
                taps |= {name: backend.ops.to_host(tapped) for name, tapped in left.taps.items()}
        output = self._after(replace(step, received=self._backend.ops.take_rows(rows)))
        if not taps:
            return output
        return HostOutput(
            output.logits, taps | output.taps, output.maxima, output.pick, output.picked
        )
