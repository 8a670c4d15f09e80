"""The narrow interface between models and machines.

A model says *what* a layer computes, in these dozen coarse operations; a backend says *how*. The
plain torch version in `reference/` defines what each one means. Rows, Packed, Matrix, Vector and
State are the backend's own; models only pass them on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.reader import GgufFile
from .layers import (
    Activation,
    Attention,
    DeltaRule,
    Floats,
    Matrix,
    MatrixPart,
    Moe,
    Norm,
    StateShape,
    Vector,
)
from .step import Ints, Step

if TYPE_CHECKING:
    from .device_loop import DeviceLoop, DeviceLoopPlan
    from .draft_loop import DraftLoop

Rows = Any  # float rows (T, width): the residual stream, projections
Packed = Any  # rows in the form that this backend's matmul eats
State = Any  # KV pages and recurrent state of all sequences
SlotImage = dict[str, NDArray[np.generic]]  # one sequence's state, as plain arrays


@dataclass(slots=True)
class Output:
    """What a model's forward pass leaves: the backend's own rows."""

    logits: Rows  # (R, V)
    taps: dict[str, Rows] = field(default_factory=dict)  # (T, width) of each tap asked for


@dataclass(frozen=True, slots=True)
class HostOutput:
    """The same as numpy arrays. They are valid until the next run; copy what is kept."""

    logits: Floats
    taps: dict[str, Floats]
    maxima: Floats | None = None  # (R, V / 64): the best of each 64 logits, NaN if one is NaN
    # If the backend can pick tokens by itself: row, address of the request and position to the
    # token, or to UNSURE; see `picking.py`.
    pick: Callable[[int, int, int], int] | None = None
    picked: Sequence[int] | None = None  # (R,) tokens that `step.requests` asked for, or UNSURE


MAXIMA_BLOCK = 64  # logits that share a maximum
Report = Callable[[str, float], None]  # what is being done, and the fraction that is done
Taps = frozenset[str]  # hidden rows that somebody wants to keep, by name
Forward = Callable[["Backend", Step, State, Taps], Output]
Run = Callable[[Step], HostOutput]
RunRows = Callable[[Step], Output]


@dataclass(frozen=True, slots=True)
class Relayed:
    """A forward pass around layers that other ranks hold. Only a backend that has these compiles
    it; `after` gets the rows that come back as `Step.received`."""

    before: Forward  # its logits are the rows that leave
    after: Forward

    def __call__(self, ops: Backend, step: Step, state: State, wanted: Taps) -> Output:
        raise AssertionError(f"{ops.name} does not hold all layers")


@dataclass(frozen=True, slots=True)
class PlannedSteps:
    """The steps that are going to be run, for a backend that wants to know what they take."""

    forward: Forward
    heads: Sequence[Forward]  # of drafters that continue hidden rows, `n_embd` wide
    n_embd: int
    shape: StateShape
    n_ctx: int
    n_slots: int
    page_len: int
    window: int
    prompt_rows: int  # of one step, at most


@dataclass(frozen=True, slots=True)
class Working:
    """Bytes that steps take beside weights and state."""

    scratch: int = 0
    graphs: int = 0  # an estimate
    n_graphs: int = 0
    reserve: int = 0  # what libraries and the driver may take later on

    @property
    def total(self) -> int:
        return self.scratch + self.graphs + self.reserve


def _silent(what: str, fraction: float) -> None:
    pass


class Backend(ABC):
    """One device and its kernels. What belongs to a sequence is in a State, never in here."""

    name: str
    details: str = ""  # instruction set, threads: what a person may want to know
    n_ranks: int = 1  # that hold a model's layers, see `core/ranks`
    holdings: Sequence[str] = ()  # of several ranks: a line each about what it holds
    reserved: int = 0  # bytes of the first rank's device that a draft model's state will take
    prepared_bytes: int = 0
    mapped_bytes: int = 0  # of these, in files that are mapped and not copied
    repacked_path: Path | None = None  # the file that keeps them as this backend wants them
    report: Report = staticmethod(_silent)
    # Rows of a prompt that are run at once, at absolute multiples of it; None: as the engine likes.
    prompt_chunk: int | None = None
    # `compile_draft_loop` is faster than the host loop and needs no memory of its own.
    drafts_in_one_call: bool = False
    # Whether a row's numbers are the same whatever rows run with it, those of prompts included.
    batch_invariant: bool = True

    @property
    def state_format(self) -> str:
        """How a state lies in memory: what was saved under one name fits no other."""
        return self.name

    savings: tuple[str, ...] = ()  # flags that make a model fit, beside -c and -np

    # weights, once per load

    def look_at(self, file: GgufFile) -> None:
        """Whose matrices the next calls are about."""

    def planner(self) -> Backend | None:
        """A backend that takes no memory and knows how much this one would; None: matrices and
        states are all that this one takes."""
        return None

    def working(self, rehearsal: PlannedSteps) -> Working:
        """Asked of a `planner`, with a forward pass over its own matrices."""
        return Working()

    @abstractmethod
    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        """What `matrix` of these parts will take in memory, from their shapes alone."""

    def expect(self, file: GgufFile, matrices: Sequence[Sequence[MatrixPart]]) -> None:
        """All that `matrix` is going to be called with, in that order: for room in one piece."""

    def weights_ready(self, file: GgufFile) -> None:
        """All that was expected has been prepared."""

    @abstractmethod
    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix:
        """Repack stored matrices, whose rows are put one under the other, for `matmul`."""

    @abstractmethod
    def vector(self, values: Floats) -> Vector:
        """Keep a small float32 array beside the matrices."""

    def free_device_bytes(self) -> int | None:
        """Memory of its own that is left; None: its arrays are the host's, or it cannot tell."""
        return None

    def left_beside(self, state_bytes: int, available: int) -> int:
        """For another model, of what is `available` in all."""
        return max(0, available - state_bytes)

    def weight_bytes(self) -> int:
        """What all matrices and vectors prepared so far take in memory."""
        return self.prepared_bytes

    # running

    def compile(
        self, forward: Forward, state: State, *, max_rows: int, taps: Taps = frozenset()
    ) -> Run:
        """A function that runs `forward` on steps of up to `max_rows` rows.

        A backend that records calls `forward` once, here; this default calls it at every step.
        """

        def run(step: Step) -> HostOutput:
            output = forward(self, step, state, taps)
            rows = {name: self.to_host(tapped) for name, tapped in output.taps.items()}
            return HostOutput(self.to_host(output.logits), rows)

        return run

    def compile_rows(
        self, forward: Forward, state: State, *, max_rows: int, taps: Taps = frozenset()
    ) -> RunRows:
        """The same for part of a model: what comes out are rows that stay on the device until the
        next run, as `logits`, and taps likewise."""
        return lambda step: forward(self, step, state, taps)

    def take_rows(self, rows: Rows) -> Rows:
        """A copy of rows (T, D) that another backend of this kind left on its device."""
        raise NotImplementedError(f"{self.name} cannot share a model with other devices")

    def activate(self) -> None:
        """Make this device the current one of the calling thread."""

    def close(self) -> None:
        """No more of anything."""

    def compile_draft_loop(
        self,
        forward: Forward,
        state: State,
        *,
        max_rows: int,
        max_draft: int,
        n_vocab: int,
        tap: str | None = None,
        vocab_subset: Ints | None = None,
        stops: Collection[int] = (),
    ) -> DraftLoop:
        """Drafts of up to `max_draft` tokens by `forward`, see `DraftLoop` in `chain.py`.

        `max_rows` rows at most are caught up on at once. Choosers see `n_vocab` logits; `tap` names
        the rows that a next row's `step.hidden` is, None for a model without. `taken`: the head
        is short, and its logit i is that of token taken[i]. A draft ends before a token of `stops`.
        """
        from .draft_loop import DraftLoopPlan, HostDraftLoop

        plan = DraftLoopPlan(max_rows, max_draft, n_vocab, tap, vocab_subset, frozenset(stops))
        run = self.compile(forward, state, max_rows=max_rows, taps=plan.taps)
        return HostDraftLoop(run, plan, state.window)

    def compile_device_loop(self, plan: DeviceLoopPlan) -> DeviceLoop | None:
        """Rounds of speculation that this device makes by itself; None: it cannot."""
        return None

    # rows

    @abstractmethod
    def embed(self, table: Matrix, step: Step) -> Rows:
        """The row of the table for each token."""

    @abstractmethod
    def given_rows(self, step: Step, width: int) -> Rows:
        """`step.received` if there are any, else `step.hidden`: rows that come from outside."""

    @abstractmethod
    def keep(self, x: Rows) -> Rows:
        """A copy that later ops leave alone (taps)."""

    @abstractmethod
    def out_rows(self, x: Rows, step: Step) -> Rows:
        """Only the rows whose logits are wanted."""

    @abstractmethod
    def to_host(self, x: Rows) -> Floats:
        """The numbers as numpy, (rows, width)."""

    # operations

    @abstractmethod
    def norm(self, x: Rows, norm: Norm) -> Packed:
        """RMS norm, ready for `matmul`."""

    @abstractmethod
    def norm_rows(self, x: Rows, norm: Norm) -> Rows:
        """RMS norm as float rows, for whoever taps it."""

    @abstractmethod
    def norm_pair(self, x: Rows, x_norm: Norm, y: Rows, y_norm: Norm) -> Packed:
        """[norm(x) | norm(y)] side by side: the input of an MTP or EAGLE block."""

    @abstractmethod
    def matmul(self, a: Packed, w: Matrix, add_to: Rows | None = None) -> Rows:
        """a @ w.T, plus bias; accumulated into `add_to` (which is then returned) if given."""

    @abstractmethod
    def gated_ffn(self, a: Packed, gate_up: Matrix, activation: Activation) -> Packed:
        """activation(gate) * up, packed for the down projection. Gate rows come first."""

    @abstractmethod
    def attend(self, qkv: Rows, attention: Attention, state: State, step: Step) -> Packed:
        """Norm and turn q and k, append k and v to the cache, attend to all cells so far.

        A row sees the cells of its own sequence up to itself. Cells at and beyond `step.past` are
        overwritten: whatever a rejected draft left there is dead.
        """

    @abstractmethod
    def delta_rule(self, rows: Rows, delta: DeltaRule, state: State, step: Step) -> Packed:
        """Convolution, gates, delta rule and gated norm of a Gated DeltaNet, row by row.

        A sequence whose first position is 0 starts from nothing. Otherwise the first
        `step.n_pending_accepted` pending factors are applied to the stored state first, with the
        same roundings as when they were made; the others are dropped. `n_kept` says whether the
        applied ones become final with that, or stay pending. Then the rows of this step run. The
        last `state.window` of them become pending too, behind those that stayed: how many of all
        these are accepted is the next step's `n_pending_accepted` (`pending_accepted_after`). Rows
        before them are final.
        """

    @abstractmethod
    def moe(self, a: Packed, moe: Moe, add_to: Rows) -> Rows:
        """Route each row, add its experts' outputs in order of rank, then the shared expert."""

    @abstractmethod
    def head(self, a: Packed, w: Matrix) -> Rows:
        """Logits, (R, V)."""

    # state

    @abstractmethod
    def new_state(
        self, shape: StateShape, *, n_pages: int, page_len: int, n_slots: int, window: int
    ) -> State:
        """Room for `n_pages` pages of `page_len` cells and for `n_slots` recurrent states."""

    @abstractmethod
    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        """Bytes of one KV page over all layers, and of one slot."""

    @abstractmethod
    def copy_pages(self, state: State, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Duplicate whole KV pages, for copy on write."""

    @abstractmethod
    def save_slot(
        self, state: State, slot: int, pages: Sequence[int], n_cells: int, n_pending: int
    ) -> SlotImage:
        """Everything that one sequence needs to go on: its cells, its recurrent state, and the
        factors of the first `n_pending` rows of its last window. Nothing of anybody else.

        Names are `kv.LAYER.WHAT` and `delta.LAYER.WHAT`; or `delta.WHAT` for an array whose first
        axis are the layers, with what concerns all of them in `delta.header`.
        """

    @abstractmethod
    def load_slot(self, state: State, slot: int, pages: Sequence[int], image: SlotImage) -> None:
        """Put a saved sequence into a slot and pages, not necessarily those it came from."""

    @abstractmethod
    def copy_slot(self, state: State, source: int, target: int, n_pending: int) -> None:
        """Duplicate the recurrent part; KV pages are shared or copied by whoever owns the table."""
