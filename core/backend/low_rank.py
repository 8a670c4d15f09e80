"""What LoRA adapters add to the products of a matrix, and by how much for each sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class LowRank(Struct, frozen=True):
    """b @ (scales * (a @ x)), where each row of `a`, and column of `b`, belongs to an adapter.

    Stacks of experts have stacks of these.
    """

    a: Floats  # (ranks, n_in) or (experts, ranks, n_in)
    b: Floats  # (n_out, ranks) or (experts, n_out, ranks)
    adapters: NDArray[np.int64]  # (ranks,) numbers of adapters


class AdapterScales:
    """Of each slot of a state and each adapter. All are 0 at first: no adapter is followed."""

    def __init__(self, n_slots: int, n_adapters: int) -> None:
        self.table = np.zeros((n_slots, n_adapters), np.float32)
        self.is_used = np.zeros(n_slots, np.int64)  # whether a slot has a scale that is not 0

    def set(self, slot: int, scales: Sequence[float]) -> None:
        """Empty: all are 0."""
        self.table[slot] = scales or 0.0
        self.is_used[slot] = self.table[slot].any()
