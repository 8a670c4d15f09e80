"""What a Gated DeltaNet keeps between steps, as arrays; and what a step moves of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

from .kernel import Argument, Array
from .shapes import require_shape
from .state_layout import StateLayout

HEAD_DIMS = (16, 32, 64, 128)
CONV_WIDTHS = range(2, 9)


@dataclass(frozen=True, slots=True)
class GdnShape:
    """Sizes of a layer, and of what is kept of each sequence."""

    n_key_heads: int
    n_value_heads: int
    head_dim: int  # of keys and values
    kernel: int  # of the convolution
    window: int  # rows whose factors are kept
    ring_rows: int
    tiled: bool  # value head h uses key head h mod n_key_heads; else h // (value heads / key heads)

    def __post_init__(self) -> None:
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"heads of {self.head_dim} values; there are kernels for {HEAD_DIMS}")
        if self.kernel not in CONV_WIDTHS:
            raise ValueError(f"a convolution over {self.kernel} rows; 2 to 8 are supported")
        _ = self.layout  # which refuses what fits no recurrence

    @property
    def value_width(self) -> int:
        return self.n_value_heads * self.head_dim

    @property
    def channels(self) -> int:
        return 2 * self.n_key_heads * self.head_dim + self.value_width

    @property
    def gates_width(self) -> int:
        """z | beta | alpha"""
        return self.value_width + 2 * self.n_value_heads

    @property
    def state_values(self) -> int:
        """Of a slot and layer."""
        return self.layout.state_values

    @property
    def factor_values(self) -> int:
        """Of a row and layer."""
        return (self.n_key_heads + self.n_value_heads) * self.head_dim + self.n_value_heads

    def rows_needed(self, n_rows: int) -> int:
        return self.layout.rows_needed(n_rows)

    @property
    def layout(self) -> StateLayout:
        return _layout_of(self)

    def array_shapes(self, n_slots: int) -> dict[str, tuple[int, ...]]:
        return self.layout.array_shapes(n_slots)


@cache
def _layout_of(s: GdnShape) -> StateLayout:
    """Asked for at each launch."""
    heads = s.n_key_heads, s.n_value_heads, s.head_dim, s.head_dim
    return StateLayout(*heads, s.kernel, s.channels, 1, s.window, s.ring_rows)


@dataclass(frozen=True, slots=True)
class GdnState:
    """Of a layer; or of all layers, whose arrays then lie one after the other in memory."""

    state: Array
    ring: Array
    keys: Array
    updates: Array
    decays: Array
    header: Array

    def layer(self, i: int) -> GdnState:
        return GdnState(*(array[i] for array in _arrays(self)))

    @property
    def arguments(self) -> list[Argument]:
        """As kernels take them."""
        return list(_arrays(self))

    def check(self, shape: GdnShape | StateLayout, *, n_layers: int | None = None) -> int:
        """The number of slots. `n_layers`: arrays of all layers."""
        first = () if n_layers is None else (n_layers,)
        n_slots = int(self.state.shape[len(first)])
        for name, expected in shape.array_shapes(n_slots).items():
            require_shape(name, getattr(self, name), (*first, *expected))
        return n_slots


def _arrays(state: GdnState) -> tuple[Array, ...]:
    return tuple(getattr(state, field.name) for field in fields(state))


@dataclass(frozen=True, slots=True)
class GdnSequences:
    """Int32 arrays of a step. Sequences without rows take no part: nothing of them changes."""

    starts: Array  # (B + 1,) first row of each sequence
    slots: Array  # (B,)
    past: Array  # (B,) position of the first row; 0: the sequence begins
    n_pending_accepted: Array  # (B,) pending factors that hold

    def check(self) -> int:
        """The number of sequences."""
        n = int(self.slots.shape[0])
        require_shape("starts", self.starts, (n + 1,))
        require_shape("past", self.past, (n,))
        require_shape("n_pending_accepted", self.n_pending_accepted, (n,))
        return n


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What a step of a sequence reads and writes of its recurrent state, in all layers."""

    read: int
    written: int

    @property
    def total(self) -> int:
        return self.read + self.written


def replay_bytes(
    shape: GdnShape, n_layers: int, n_rows: int, n_valid: int, *, stores: bool = True
) -> StepBytes:
    """With factors: `n_valid` are pending and hold. `stores`: the state is written as well."""
    state, factor = 4 * n_layers * shape.state_values, 4 * n_layers * shape.factor_values
    return StepBytes(state + n_valid * factor, state * stores + n_rows * factor)


def snapshot_bytes(shape: GdnShape, n_layers: int, n_rows: int) -> StepBytes:
    """With a state for each row that may be the last to hold, as others do it."""
    state = 4 * n_layers * shape.state_values
    return StepBytes(state, n_rows * state)


def replay_memory(shape: GdnShape, n_layers: int) -> int:
    """Bytes of a slot beside its state: two halves of factors."""
    return 4 * n_layers * 2 * shape.window * shape.factor_values


def snapshot_memory(shape: GdnShape, n_layers: int, n_rows: int) -> int:
    """Bytes of a slot beside its state, where each row of a step leaves one."""
    return 4 * n_layers * (n_rows - 1) * shape.state_values
