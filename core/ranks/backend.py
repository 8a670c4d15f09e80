"""`RankedBackend`: a backend for a model whose layers several ranks hold.

What rank 0 holds runs on its own backend; so does every other model, such as a draft model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..backend.draft_loop import DraftLoop
from ..backend.interface import (
    Backend,
    Forward,
    HostOutput,
    Relayed,
    Run,
    RunRows,
    SlotImage,
    State,
    Taps,
)
from ..backend.layers import Floats, Matrix, MatrixPart, SplitShape, StateShape, Vector
from ..backend.step import Step
from ..models.base import block_input
from .images import join_images, split_image
from .orders import NO_ROWS
from .ring import Relay, Ring


@dataclass(eq=False)
class RankedState:
    own: State  # rank 0's
    number: int  # by which the others know theirs
    shape: SplitShape


def _own(name: str) -> Callable[..., Any]:
    """An op, as rank 0 does it."""

    def op(self: RankedBackend, *arguments: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*arguments, **named)

    return op


class RankedBackend(Backend):
    def __init__(self, inner: Backend, ring: Ring, name: str) -> None:
        """`inner`: of rank 0."""
        self.inner, self.ring, self.name = inner, ring, name
        self.details = ", ".join(filter(None, ring.join(inner)))
        self.blocks: Sequence[range] = ()  # of each rank
        self.n_ranks = ring.n_ranks
        self.prompt_chunk, self.batch_invariant = inner.prompt_chunk, inner.batch_invariant
        self.rank_bytes: Sequence[int] = ()  # of the weights of ranks 1 …
        self.trunk = StateShape(())

    @property
    def state_format(self) -> str:
        return self.inner.state_format

    # weights

    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        return self.inner.matrix_bytes(parts)

    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix:
        return self.inner.matrix(parts)

    def vector(self, values: Floats) -> Vector:
        return self.inner.vector(values)

    def weight_bytes(self) -> int:
        return self.inner.weight_bytes() + sum(self.rank_bytes)

    def free_device_bytes(self) -> int | None:
        """As if all were one device: so much state as fits everywhere when it is shared as the
        layers are."""
        free = [self.inner.free_device_bytes(), *self.ring.free()]
        shares = self._shares()
        room = []
        for rank, (left, share) in enumerate(zip(free, shares, strict=True)):
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
            return [1.0] * self.ring.n_ranks
        whole = self._sizes(shape)
        parts = [self._sizes(shape.of_rank(rank)) for rank in range(self.ring.n_ranks)]
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
            return self.inner.compile(forward, own(state), max_rows=max_rows, taps=taps)
        assert isinstance(state, RankedState), "made for the same model"
        before = self.inner.compile_rows(forward.before, state.own, max_rows=max_rows, taps=taps)
        after = self.inner.compile(forward.after, state.own, max_rows=max_rows, taps=taps)
        tapping = [taps & {block_input(i) for i in blocks} for blocks in self.blocks[1:]]
        relay = self.ring.compile(state.number, max_rows, tapping)
        return _Relaying(self, relay, before, after)

    def compile_rows(
        self, forward: Forward, state: State, *, max_rows: int, taps: Taps = frozenset()
    ) -> RunRows:
        return self.inner.compile_rows(forward, own(state), max_rows=max_rows, taps=taps)

    def compile_draft_loop(self, forward: Forward, state: State, **named: Any) -> DraftLoop:
        """MTP heads and draft models are rank 0's."""
        assert not isinstance(forward, Relayed), "one rank holds whatever drafts"
        return self.inner.compile_draft_loop(forward, own(state), **named)

    def when_lost(self, tell: Callable[[Callable[[], None]], None]) -> None:
        self.ring.when_lost(tell)

    def close(self) -> None:
        self.ring.close()
        self.inner.close()

    # rows and operations of rank 0

    new_rows = _own("new_rows")
    embed = _own("embed")
    given_rows = _own("given_rows")
    keep = _own("keep")
    out_rows = _own("out_rows")
    to_host = _own("to_host")
    norm = _own("norm")
    norm_rows = _own("norm_rows")
    norm_pair = _own("norm_pair")
    matmul = _own("matmul")
    gated_ffn = _own("gated_ffn")
    attend = _own("attend")
    delta_rule = _own("delta_rule")
    moe = _own("moe")
    head = _own("head")

    # state

    def new_state(
        self, shape: StateShape, *, n_pages: int, page_len: int, n_slots: int, window: int
    ) -> State:
        sizes = {"n_pages": n_pages, "page_len": page_len, "n_slots": n_slots, "window": window}
        if not isinstance(shape, SplitShape):
            return self.inner.new_state(shape, **sizes)
        number = self.ring.new_state(shape, sizes)
        state = RankedState(self.inner.new_state(shape.of_rank(0), **sizes), number, shape)
        weakref.finalize(state, self.ring.drop_state, number)
        return state

    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        return self.inner.state_bytes(shape, page_len=page_len, window=window)

    def copy_pages(self, state: State, sources: Sequence[int], targets: Sequence[int]) -> None:
        if isinstance(state, RankedState):
            self.ring.tell("copy_pages", state.number, list(sources), list(targets))
        self.inner.copy_pages(own(state), sources, targets)

    def save_slot(
        self, state: State, slot: int, pages: Sequence[int], n_cells: int, n_pending: int
    ) -> SlotImage:
        image = self.inner.save_slot(own(state), slot, pages, n_cells, n_pending)
        if not isinstance(state, RankedState):
            return image
        others = self.ring.ask("save_slot", state.number, slot, list(pages), n_cells, n_pending)
        return join_images([image, *others], state.shape)

    def load_slot(self, state: State, slot: int, pages: Sequence[int], image: SlotImage) -> None:
        if isinstance(state, RankedState):
            image, *others = split_image(image, state.shape, self.ring.n_ranks)
            orders = [(state.number, slot, list(pages), each) for each in others]
            self.ring.tell_each("load_slot", orders)
        self.inner.load_slot(own(state), slot, pages, image)

    def copy_slot(self, state: State, source: int, target: int, n_pending: int) -> None:
        if isinstance(state, RankedState):
            self.ring.tell("copy_slot", state.number, source, target, n_pending)
        self.inner.copy_slot(own(state), source, target, n_pending)


def own(state: State) -> State:
    """Rank 0's part."""
    return state.own if isinstance(state, RankedState) else state


class _Relaying:
    """A forward pass: rank 0's layers, those of the others, and rank 0's head."""

    def __init__(self, backend: RankedBackend, relay: Relay, before: RunRows, after: Run) -> None:
        self._inner, self._ring = backend.inner, backend.ring
        self._relay, self._before, self._after = relay, before, after

    def __call__(self, step: Step) -> HostOutput:
        group = self._ring.group
        with self._relay.passing(step.n_rows):
            self._relay.begin(step)
            left = self._before(replace(step, out_rows=NO_ROWS, requests=None))
            group.send(left.logits)
            rows = self._inner.new_rows(*left.logits.shape)
            group.receive(rows)
            output = self._after(replace(step, received=rows))
            taps = {name: self._inner.to_host(tapped) for name, tapped in left.taps.items()}
            taps |= self._relay.taps()
        if not taps:
            return output
        return HostOutput(
            output.logits, taps | output.taps, output.maxima, output.pick, output.picked
        )
