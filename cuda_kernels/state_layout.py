"""What a recurrent layer keeps between steps, as sizes of arrays: of every kind of recurrence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateLayout:
    """A value head has a state (value_dim, key_dim). A row leaves its factors: a key of each key
    head, an update of each value head, and `decay_dim` decays of each. A convolution alone has no
    heads."""

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int  # of the convolution
    channels: int  # that it goes over
    decay_dim: int
    window: int  # rows whose factors are kept
    ring_rows: int

    def __post_init__(self) -> None:
        if self.n_key_heads and self.n_value_heads % self.n_key_heads:
            raise ValueError(
                f"{self.n_value_heads} value heads cannot share {self.n_key_heads} key heads"
            )
        if self.ring_rows < self.rows_needed(self.window):
            raise ValueError(
                f"a ring of {self.ring_rows} rows; a window of {self.window} needs "
                f"{self.rows_needed(self.window)}"
            )
        odd = [width for width in self.copied_widths if width % 4]
        if odd:
            raise ValueError(f"rows of {odd[0]} values; copies are of 4 values each")

    @property
    def key_width(self) -> int:
        return self.n_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.n_value_heads * self.value_dim

    @property
    def decay_width(self) -> int:
        return self.n_value_heads * self.decay_dim

    @property
    def state_values(self) -> int:
        """Of a slot and layer."""
        return self.value_width * self.key_dim

    @property
    def copied_widths(self) -> tuple[int, int, int]:
        """Of rows that snapshots copy by 16 bytes each."""
        return self.channels, self.key_width, self.value_width

    def rows_needed(self, n_rows: int) -> int:
        """Of the ring, where a sequence has up to `n_rows` rows in a step."""
        return max(n_rows, self.window) + self.kernel - 1

    def array_shapes(self, n_slots: int) -> dict[str, tuple[int, ...]]:
        """Of one layer. All arrays are float32, except int32 `header`; all begin as zeros."""
        halves = (n_slots, 2, self.window)
        return {
            "state": (n_slots, self.n_value_heads, self.value_dim, self.key_dim),
            "ring": (n_slots, self.ring_rows, self.channels),
            "keys": (*halves, self.n_key_heads, self.key_dim),
            "updates": (*halves, self.n_value_heads, self.value_dim),
            "decays": (*halves, self.n_value_heads, *self._decays),
            "header": (n_slots, 2),
        }

    @property
    def _decays(self) -> tuple[int, ...]:
        return () if self.decay_dim == 1 else (self.decay_dim,)

    def image_shapes(self, n_pending: int) -> dict[str, tuple[int, ...]]:
        """Of what is saved of a layer, under the names of the reference's slot image, in order."""
        return {
            "S": (self.n_value_heads, self.value_dim, self.key_dim),
            "conv": (self.kernel - 1, self.channels),
            "keys": (n_pending, self.n_key_heads, self.key_dim),
            "updates": (n_pending, self.n_value_heads, self.value_dim),
            "inputs": (n_pending, self.channels),
            "decays": (n_pending, self.n_value_heads, *self._decays),
        }
