"""`Ops`: what a model's forward pass is made of.

A model says *what* a layer computes, in these coarse operations; a backend says *how*. The plain
torch version in `reference/` defines what each one means. Rows, Packed, Matrix and State are the
backend's own; models only pass them on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..layers import (
    Attention,
    ChannelDelta,
    DeltaRule,
    DynamicConvolution,
    Floats,
    Gate,
    LatentAttention,
    Matrix,
    Moe,
    Norm,
    PlainActivation,
    ShortConvolution,
    StateSpace,
)
from ..step import Step
from .rows import Packed, Rows
from .states import State


class Ops(ABC):
    # rows

    @abstractmethod
    def embed(
        self, table: Matrix, step: Step, scale: float = 1.0, *, takes_rows: bool = True
    ) -> Rows:
        """The row of the table for each token, times `scale`.

        A token that stands for a row of `step.embedded` has the beginning of that, as it is; with
        `takes_rows=False` the table's row of token 0.
        """

    def add_embedded(self, x: Rows, step: Step, first: int) -> Rows:
        """x plus the numbers from `first` on of the rows of `step.embedded`, in the memory of x;
        tokens that do not stand for such a row add nothing."""
        raise NotImplementedError("this backend takes no rows that are added behind layers")

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
        """The norm of each row, ready for `matmul`."""

    @abstractmethod
    def norm_rows(self, x: Rows, norm: Norm) -> Rows:
        """The norm of each row as float rows, for a tap."""

    @abstractmethod
    def norm_slices(self, x: Rows, norm: Norm) -> Rows:
        """The norm of each slice of a row that is as wide as the norm's weight."""

    @abstractmethod
    def norm_columns(self, x: Rows, norm: Norm, column: int) -> Rows:
        """The norm of a part of each row, as wide as the norm's weight, in the memory of x."""

    @abstractmethod
    def add_norm(self, x: Rows, y: Rows, norm: Norm, scale: float = 1.0) -> Rows:
        """(x + norm(y)) * scale, in the memory of x: a norm behind a layer."""

    @abstractmethod
    def add(self, x: Rows, y: Rows, scale: float = 1.0) -> Rows:
        """(x + y) * scale, in the memory of x."""

    @abstractmethod
    def activate(self, x: Rows, activation: PlainActivation) -> Rows:
        """The activation of each number, in the memory of x."""

    @abstractmethod
    def pack(self, x: Rows) -> Packed:
        """Rows as they are, ready for `matmul`."""

    @abstractmethod
    def norm_pair(self, x: Rows, x_norm: Norm, y: Rows, y_norm: Norm) -> Packed:
        """[norm(x) | norm(y)] side by side: the input of an MTP or EAGLE block."""

    @abstractmethod
    def matmul(self, a: Packed, w: Matrix, add_to: Rows | None = None) -> Rows:
        """a @ w.T, plus bias; accumulated into `add_to` (which is then returned) if given."""

    @abstractmethod
    def gated_ffn(self, a: Packed, gate_up: Matrix, gate: Gate) -> Packed:
        """activation(gate) * up, packed for the down projection. Gate rows come first."""

    @abstractmethod
    def gate_by(self, gates: Rows, y: Rows, column: int, gate: Gate) -> Packed:
        """activation(gates) * y, where y begins at a column of wider rows."""

    @abstractmethod
    def convolve(self, x: Rows, factors: Rows, conv: DynamicConvolution, step: Step) -> Rows:
        """Rows of their own, see `DynamicConvolution`."""

    @abstractmethod
    def attend(self, qkv: Rows, attention: Attention, state: State, step: Step) -> Packed:
        """Norm and turn q and k, append k and v to the cache, attend to all cells so far.

        A row sees the cells of its own sequence up to itself, up to the last row of its image where
        the attention is bidirectional, or up to the last row of the step where it is not causal.
        Cells at and beyond `step.past` are overwritten:
        whatever a rejected draft left there is dead.
        """

    @abstractmethod
    def append(self, qkv: Rows, attention: Attention, state: State, step: Step) -> None:
        """The first half of `attend`: k and v of the rows go to their cells, nothing attends."""

    @abstractmethod
    def attend_latent(
        self, q: Rows, cells: Rows, attention: LatentAttention, state: State, step: Step
    ) -> Packed:
        """MLA: norm the latent of `cells`, turn its key and q, append it to the cache, attend.

        Rows of q (T, H * (plain + rope)), of `cells` (T, latent + rope); (T, H * value_dim) comes
        out. Visibility is that of `attend`.
        """

    @abstractmethod
    def delta_rule(self, rows: Rows, delta: DeltaRule, state: State, step: Step) -> Packed:
        """Convolution, gates, delta rule and gated norm of a Gated DeltaNet, row by row.

        A sequence without past cells starts from nothing. Otherwise the first
        `step.n_pending_accepted` pending factors are applied to the stored state first, with the
        same roundings as when they were made; the others are dropped. `n_kept` says whether the
        applied ones become final with that, or stay pending. Then the rows of this step run. The
        last `state.window` of them become pending too, behind those that stayed: how many of all
        these are accepted is the next step's `n_pending_accepted` (`pending_accepted_after`). Rows
        before them are final.
        """

    @abstractmethod
    def channel_delta(
        self, rows: Rows, decays: Rows, gates: Rows, kda: ChannelDelta, state: State, step: Step
    ) -> Packed:
        """The same with a decay for each number of a key; what is pending is as in `delta_rule`."""

    @abstractmethod
    def state_space(self, rows: Rows, layer: StateSpace, state: State, step: Step) -> Packed:
        """Convolution, recurrence, gate and norm of a Mamba-2 layer, row by row; what is pending
        and what is final is as in `delta_rule`."""

    @abstractmethod
    def short_convolution(
        self, rows: Rows, layer: ShortConvolution, state: State, step: Step
    ) -> Packed:
        """Likewise, where the last inputs of a convolution are all the state there is."""

    @abstractmethod
    def moe(
        self, a: Packed, moe: Moe, add_to: Rows | None, routed_by: Packed | None = None
    ) -> Rows:
        """Route each row, add its experts' outputs in order of rank, then the shared expert.

        `add_to`: what they are added to, in its memory; None: to nothing. `routed_by`: the rows
        that the router reads, if not `a`.
        """

    @abstractmethod
    def head(self, a: Packed, w: Matrix, cap: float = 0.0) -> Rows:
        """Logits, (R, V). With a cap, they become cap * tanh(logit / cap)."""
