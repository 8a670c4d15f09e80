"""`StateMemory`: where sequences keep their keys, values and recurrent states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..layers import KvShape, StateShape
from ..low_rank import AdapterScales

# KV pages and recurrent states of all sequences; with `StateRoom.n_adapters` also the scales of
# each slot, as `adapter_scales`.
State = Any
SlotImage = dict[str, NDArray[np.generic]]  # one sequence's state, as plain arrays


class StateRoom(Struct, frozen=True):
    """What a state has room for."""

    n_pages: int
    page_len: int  # cells
    n_slots: int  # recurrent states
    window: int
    # Of windowed layers, which then are not among the others; 0: windowed layers keep all cells,
    # like the others. Only where `frees_windows`.
    n_windowed_pages: int = 0
    n_adapters: int = 0  # LoRA adapters whose scales each slot has; only where `runs_adapters`

    def adapter_scales(self) -> AdapterScales | None:
        return AdapterScales(self.n_slots, self.n_adapters) if self.n_adapters else None

    def has_own_pages(self, layer: KvShape) -> bool:
        """Whether its pages are those of `Step.windowed_pages`."""
        return bool(self.n_windowed_pages and layer.window)

    def pages_of(self, layer: KvShape) -> int:
        return self.n_windowed_pages if self.has_own_pages(layer) else self.n_pages


class StateMemory(ABC):
    name: str

    # `new_state` can give windowed layers pages of their own, which are few.
    frees_windows: bool = False

    @property
    def state_format(self) -> str:
        """The layout of a saved state: a state of one format fits no other."""
        return self.name

    @abstractmethod
    def new_state(self, shape: StateShape, room: StateRoom) -> State:
        """Pages and slots of a model, all empty."""

    @abstractmethod
    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        """Bytes of one KV page over all layers, and of one slot."""

    @abstractmethod
    def copy_pages(
        self,
        state: State,
        sources: Sequence[int],
        targets: Sequence[int],
        *,
        windowed: bool = False,
    ) -> None:
        """Duplicate whole KV pages, for copy on write. `windowed`: those of windowed layers, if
        they have pages of their own."""

    @abstractmethod
    def save_slot(
        self,
        state: State,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        """Everything that one sequence needs to go on: its cells, its recurrent state, and the
        factors of the first `n_pending` rows of its last window. Nothing of other sequences.
        `windowed_pages`: its last pages of windowed layers, up to that of the last cell.

        Names are `kv.LAYER.WHAT` and `delta.LAYER.WHAT`; or `delta.WHAT` for an array whose first
        axis are the layers, with what concerns all of them in `delta.header`.
        """

    @abstractmethod
    def load_slot(
        self,
        state: State,
        slot: int,
        pages: Sequence[int],
        image: SlotImage,
        windowed_pages: Sequence[int] = (),
    ) -> None:
        """Put a saved sequence into a slot and pages, not necessarily those it came from, but as
        many of them."""

    @abstractmethod
    def copy_slot(self, state: State, source: int, target: int, n_pending: int) -> None:
        """Duplicate the recurrent part; KV pages are shared or copied by the owner of the table."""
