"""Memory that the launches of a step write to."""

from __future__ import annotations

from msgspec import Struct

from ....cuda_kernels import qmm
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.mm_bf16_skinny import GatedSpace
from ....cuda_kernels.packed import PackedRows, packed_shapes
from ..interface import StateRoom
from .device_contract import Device

FEWEST_ROWS = 16
# Rows of a step that becomes a graph. Of longer ones launching is the least, and prompts differ in
# length; what they leave, logits of all rows perhaps, is not worth keeping room for.
MOST_REPEATED = 128


def rounded_up(n: int, least: int = FEWEST_ROWS) -> int:
    """A size that is enough for n, and one of few: what was made once stays, for graphs use it."""
    size = least
    while size < n:
        size *= 2
    return size


class StepLimits(Struct, frozen=True):
    """The largest step of few rows that a state is for. Memory that all steps share is made for it
    at once: graphs of smaller ones have addresses in it, so it cannot grow."""

    n_rows: int
    n_cells: int  # of a sequence

    @classmethod
    def of(cls, room: StateRoom) -> StepLimits:
        n_cells = room.n_pages * room.page_len // room.n_slots
        return cls(min(MOST_REPEATED, room.n_slots * room.window), n_cells)


class StepMemory:
    def __init__(self, device: Device) -> None:
        self.device, self.launcher = device, device.launcher
        self._kept: dict[tuple[str, int, int], Array] = {}

    def rows(self, n_rows: int, width: int) -> Array:
        return self.device.empty((n_rows, width), "float32")

    def packed(self, n_rows: int, width: int) -> PackedRows:
        q, d, s = packed_shapes(n_rows, width)
        empty = self.device.empty
        return PackedRows(empty(q, "int8"), empty(d, "float32"), empty(s, "int16"))

    def products(
        self, n_rows: int, n_out: int, hidden: int = 0, beside: bool = False
    ) -> qmm.Workspace:
        """Shared by all products: they run one after the other. `beside`: another such, for one
        that shares its launch."""
        more = " beside" if beside else ""
        n_rows, n_out = rounded_up(n_rows), rounded_up(n_out)
        size = qmm.Workspace.partials_size(n_rows, self.launcher.n_processors)
        partials = self.kept("partials" + more, size, 1)
        counters = self.kept("counters" + more, qmm.Workspace.counters_size(n_rows, n_out), 1)
        space = self.kept("hidden", n_rows, hidden) if hidden else None
        return qmm.Workspace(partials.reshape(-1), counters.reshape(-1), space)

    def gated(self, n_rows: int, inner: int) -> GatedSpace:
        n_rows = rounded_up(n_rows)
        arrivals = self.kept("counters", GatedSpace.arrivals_size(n_rows, inner), 1)
        return GatedSpace(self.kept("hidden", n_rows, inner), arrivals.reshape(-1))

    def kept(self, name: str, n: int, width: int) -> Array:
        """Memory that stays; counters begin as zeros, and are zeros again after each use."""
        key = name, n, width
        if key not in self._kept:
            make, kind = self.device.empty, "float32"
            if name.startswith("counters"):
                make, kind = self.device.zeros, "int32"
            self._kept[key] = make((n, width), kind)
        return self._kept[key]


class Outputs:
    """What the runs of one forward pass leave: always in the same memory, which no other run writes
    to. What is made for a graph in passing may be overwritten by any other graph."""

    def __init__(self, device: Device, room: int, most_kept: int = MOST_REPEATED) -> None:
        """`room`: rows that memory is made for, if not for more. `most_kept`: more rows are in
        memory of their own each time."""
        self._device, self._room, self._most_kept = device, rounded_up(room), most_kept
        self._kept: dict[tuple[str, int, int], Array] = {}
        self._n_taps = 0

    def begin(self) -> None:
        """A run, or what will be one."""
        self._n_taps = 0

    def rows(self, name: str, n_rows: int, width: int, dtype: str = "float32") -> Array:
        if n_rows > self._most_kept:
            return self._device.empty((n_rows, width), dtype)
        key = name, max(rounded_up(n_rows), self._room), width
        if key not in self._kept:
            self._kept[key] = self._device.empty(key[1:], dtype)
        return self._kept[key][:n_rows]

    def tap(self, n_rows: int, width: int) -> Array:
        self._n_taps += 1
        return self.rows(f"tap {self._n_taps}", n_rows, width)
