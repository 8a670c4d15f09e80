"""Memory that the launches of a step write to."""

from __future__ import annotations

from ....cuda_kernels import qmm
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.packed import PackedRows, packed_shapes
from .device import Device


class Rooms:
    def __init__(self, device: Device) -> None:
        self.device, self.launcher = device, device.launcher
        self._workspaces: dict[tuple[int, int, int], qmm.Workspace] = {}

    def rows(self, n_rows: int, width: int) -> Array:
        return self.device.empty((n_rows, width), "float32")

    def packed(self, n_rows: int, width: int) -> PackedRows:
        q, d, s = packed_shapes(n_rows, width)
        empty = self.device.empty
        return PackedRows(empty(q, "int8"), empty(d, "float32"), empty(s, "int16"))

    def products(self, n_rows: int, n_out: int, hidden: int = 0) -> qmm.Workspace:
        """Shared by all products of a shape: they run one after the other."""
        key = n_rows, n_out, hidden
        if key not in self._workspaces:
            n = self.launcher.n_processors
            self._workspaces[key] = qmm.Workspace(
                self.device.empty((qmm.Workspace.partials_size(n_rows, n),), "float32"),
                self.device.zeros((qmm.Workspace.counters_size(n_rows, n_out),), "int32"),
                self.rows(n_rows, hidden) if hidden else None,
            )
        return self._workspaces[key]
