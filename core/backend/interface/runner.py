"""`StepRunner`: forward passes, compiled once and run step after step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from ..layers import StateShape
from ..step import Step
from .device_loop import DeviceLoop, DeviceLoopPlan
from .drafts import BlockDraft, DraftLoop, DraftLoopPlan
from .forward import Forward, Run, RunRows
from .ops import Ops
from .rows import Output, Taps
from .states import State


class Relayed(Struct, frozen=True):
    """A forward pass around layers that other ranks hold. Only a backend that has these compiles
    it; `after` gets the rows that come back as `Step.received`."""

    before: Forward  # its logits are the rows that leave
    after: Forward

    def __call__(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        raise AssertionError("one device does not hold all layers")


class PlannedSteps(Struct, frozen=True):
    """The steps that are going to be run, for an estimate of the memory that they take."""

    forward: Forward
    heads: Sequence[Forward]  # of drafters that continue hidden rows, `n_embd` wide
    n_embd: int
    shape: StateShape
    n_ctx: int
    n_slots: int
    page_len: int
    window: int
    prompt_rows: int  # of one step, at most


class Working(Struct, frozen=True):
    """Bytes that steps take beside weights and state."""

    scratch: int = 0
    graphs: int = 0  # an estimate
    n_graphs: int = 0
    reserve: int = 0  # what libraries and the driver may take later on

    @property
    def total(self) -> int:
        return self.scratch + self.graphs + self.reserve


class StepRunner(ABC):
    name: str
    # Rows of a prompt that are run at once, at absolute multiples of it; None: any number.
    prompt_chunk: int | None = None
    # `compile_draft_loop` is faster than the host loop and needs no memory of its own.
    drafts_in_one_call: bool = False
    # A row's numbers are the same whatever rows run with it, those of prompts included.
    batch_invariant: bool = True
    # Whether `Step.axes` are taken into account, and `Step.ahead`.
    turns_by_axes: bool = True
    looks_ahead: bool = True
    # Whether products add what LoRA adapters do, see `LowRank`.
    runs_adapters: bool = False
    # Whether `Ops` has what towers of images need, and adds rows behind layers.
    runs_towers: bool = True

    def working(self, planned: PlannedSteps) -> Working:
        """Called on a `planner`, with a forward pass over its own matrices."""
        return Working()

    @abstractmethod
    def compile(
        self, forward: Forward, state: State, *, max_rows: int, taps: Taps = frozenset()
    ) -> Run:
        """A function that runs `forward` on steps of up to `max_rows` rows."""

    def compile_rows(
        self, forward: Forward, state: State, *, max_rows: int, taps: Taps = frozenset()
    ) -> RunRows:
        """The same for part of a model: what comes out are rows that stay on the device until the
        next run, as `logits`, and taps likewise."""
        raise NotImplementedError(f"{self.name} cannot share a model with other devices")

    @abstractmethod
    def compile_draft_loop(self, forward: Forward, state: State, plan: DraftLoopPlan) -> DraftLoop:
        """Drafts by `forward`, see `DraftLoop`."""

    @abstractmethod
    def compile_block_draft(
        self, forward: Forward, state: State, plan: DraftLoopPlan
    ) -> BlockDraft:
        """Drafts by `forward`, see `BlockDraft`."""

    def compile_device_loop(self, plan: DeviceLoopPlan) -> DeviceLoop | None:
        """Rounds of speculation that this device makes by itself; None: it cannot."""
        return None

    def activate(self) -> None:
        """Make this device the current one of the calling thread."""

    def close(self) -> None:
        """No more of anything."""
