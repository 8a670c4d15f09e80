"""`StateMemory`: where sequences keep their keys, values and recurrent states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layers import StateShape

State = Any  # KV pages and recurrent states of all sequences
SlotImage = dict[str, NDArray[np.generic]]  # one sequence's state, as plain arrays


class StateMemory(ABC):
    name: str

    @property
    def state_format(self) -> str:
        """The layout of a saved state: a state of one format fits no other."""
        return self.name

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
        factors of the first `n_pending` rows of its last window. Nothing of other sequences.

        Names are `kv.LAYER.WHAT` and `delta.LAYER.WHAT`; or `delta.WHAT` for an array whose first
        axis are the layers, with what concerns all of them in `delta.header`.
        """

    @abstractmethod
    def load_slot(self, state: State, slot: int, pages: Sequence[int], image: SlotImage) -> None:
        """Put a saved sequence into a slot and pages, not necessarily those it came from."""

    @abstractmethod
    def copy_slot(self, state: State, source: int, target: int, n_pending: int) -> None:
        """Duplicate the recurrent part; KV pages are shared or copied by the owner of the table."""
