"""What the kernels of a Mamba-2 layer share: shapes and argument words."""

from __future__ import annotations

from msgspec.structs import asdict

from ...layers import RecurrentShape, StateSpace


class StateSpaceShape(RecurrentShape, frozen=True, kw_only=True):
    """All that the kernels of one layer are specialised for."""

    window: int
    width: int  # of the op's input rows

    @classmethod
    def of(cls, layer: StateSpace, window: int) -> StateSpaceShape:
        return cls(**asdict(layer.shape), window=window, width=layer.width)

    @property
    def heads_per_key(self) -> int:
        return self.n_value_heads // self.n_key_heads

    @property
    def slice_width(self) -> int:
        """Values that are normed together."""
        return self.value_width // self.n_key_heads


class ScanWords:
    """Argument words of the recurrence."""

    STEP, ROWS, MIXED, A, BIAS, SKIP, WAITS, STATES, KEYS, UPDATES, DECAYS, OUT = range(12)
    COUNT = 12
