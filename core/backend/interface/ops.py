"""`Ops`: what a model's forward pass is made of.

A model says *what* a layer computes, in these coarse operations; a backend says *how*. The plain
torch version in `reference/` defines what each one means. Rows, Packed, Matrix and State are the
backend's own; models only pass them on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..layers import Attention, DeltaRule, Floats, GateActivation, Matrix, Moe, Norm
from ..step import Step
from .rows import Packed, Rows
from .states import State


class Ops(ABC):
    # rows

    @abstractmethod
    def embed(self, table: Matrix, step: Step) -> Rows:
        """The row of the table for each token."""

    @abstractmethod
    def given_rows(self, step: Step, width: int) -> Rows:
        """`step.received` if there are any, else `step.hidden`: rows that come from outside."""

    def take_rows(self, rows: Rows) -> Rows:
        """A copy of rows (T, D) that another backend of this kind left on its device."""
        raise NotImplementedError("this backend cannot share a model with other devices")

    @abstractmethod
    def keep(self, x: Rows) -> Rows:
        """A copy that later ops leave alone (taps)."""

    @abstractmethod
    def out_rows(self, x: Rows, step: Step) -> Rows:
        """Only the rows with logits."""

    @abstractmethod
    def to_host(self, x: Rows) -> Floats:
        """The numbers as numpy, (rows, width)."""

    # operations

    @abstractmethod
    def norm(self, x: Rows, norm: Norm) -> Packed:
        """RMS norm, ready for `matmul`."""

    @abstractmethod
    def norm_rows(self, x: Rows, norm: Norm) -> Rows:
        """RMS norm as float rows, for a tap."""

    @abstractmethod
    def norm_pair(self, x: Rows, x_norm: Norm, y: Rows, y_norm: Norm) -> Packed:
        """[norm(x) | norm(y)] side by side: the input of an MTP or EAGLE block."""

    @abstractmethod
    def matmul(self, a: Packed, w: Matrix, add_to: Rows | None = None) -> Rows:
        """a @ w.T, plus bias; accumulated into `add_to` (which is then returned) if given."""

    @abstractmethod
    def gated_ffn(self, a: Packed, gate_up: Matrix, activation: GateActivation) -> Packed:
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
