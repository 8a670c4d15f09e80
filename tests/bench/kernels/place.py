"""Where kernels are measured: a CUDA device; or, to try the cases, the CPU shim."""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shim.machine import CudaMachine, HostMachine, Machine
from support.packed_rows import pack, unpack

from nextn.cuda_kernels.kernel import Array, Launcher
from nextn.cuda_kernels.launch import DeviceLauncher
from nextn.cuda_kernels.packed import PackedRows, packed_shapes

Launch = Callable[[], None]
Numpy = np.ndarray[Any, Any]
Floats = NDArray[np.float32]
REPEATS = 7  # medians are of so many
SECONDS = 0.02  # of each
LAUNCHES = 64  # in a graph, at least


class Place(ABC):
    machine: Machine
    launcher: Launcher
    is_dry: bool

    def __init__(self) -> None:
        self.random = np.random.default_rng(1)

    @abstractmethod
    def copies(self, moved: int) -> int:
        """How many sets of arrays it takes so that none is still in a cache when it is due."""

    @abstractmethod
    def measure(self, launches: Sequence[Launch], *, early: bool) -> float:
        """Seconds of one of them, in a CUDA graph of them all. NaN where nothing is measured."""

    def put(self, array: Numpy) -> Array:
        return self.machine.put(array)

    def get(self, array: Array) -> Numpy:
        return self.machine.get(array)

    def zeros(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Array:
        return self.put(np.zeros(shape, dtype))

    def normal(self, *shape: int) -> Array:
        return self.put(self.random.standard_normal(shape, np.float32))

    def ints(self, *values: int) -> Array:
        return self.put(np.array(values, np.int32))

    def packed(self, n_rows: int, width: int) -> PackedRows:
        """To be written."""
        q, d, s = packed_shapes(n_rows, width)
        return PackedRows(self.zeros(q, np.int8), self.zeros(d), self.zeros(s, np.int16))

    def packed_rows(self, rows: Floats) -> PackedRows:
        made = pack(rows)
        return PackedRows(self.put(made.q), self.put(made.d), self.put(made.s))

    def unpacked(self, packed: PackedRows) -> NDArray[np.float64]:
        return unpack(PackedRows(self.get(packed.q), self.get(packed.d), self.get(packed.s)))

    @abstractmethod
    def copy(self, source: Array, target: Array) -> None:
        """As the driver does it."""

    @abstractmethod
    def tiled(self, piece: Numpy, times: int) -> Array:
        """`piece` so many times behind itself, along its first dimension."""


class DryPlace(Place):
    """Everything once, nothing measured."""

    is_dry = True

    def __init__(self) -> None:
        super().__init__()
        self.machine = HostMachine(0)
        self.launcher = self.machine.launcher

    def copies(self, moved: int) -> int:
        return 2

    def measure(self, launches: Sequence[Launch], *, early: bool) -> float:
        if not early:
            for launch in launches[1:]:
                launch()
        return math.nan

    def copy(self, source: Array, target: Array) -> None:
        target[...] = source

    def tiled(self, piece: Numpy, times: int) -> Array:
        return self.put(np.concatenate([piece] * times))


class DevicePlace(Place):
    is_dry = False
    launcher: DeviceLauncher

    def __init__(self) -> None:
        super().__init__()
        self.machine = CudaMachine()
        self.launcher = DeviceLauncher()
        self.torch = import_module("torch")
        runtime = import_module("cupy").cuda.runtime
        self.cache_bytes = int(runtime.deviceGetAttribute(runtime.cudaDevAttrL2CacheSize, 0))
        self.memory_bytes = int(self.torch.cuda.get_device_properties(0).total_memory)

    def copies(self, moved: int) -> int:
        wanted = -(-3 * self.cache_bytes // max(moved, 1))
        return max(1, min(wanted, 64, self.memory_bytes // 4 // max(moved, 1)))

    def copy(self, source: Array, target: Array) -> None:
        target.copy_(source)

    def tiled(self, piece: Numpy, times: int) -> Array:
        # torch knows 16-bit words as signed ones; kernels do not ask.
        one = self.put(piece.view(np.int16) if piece.dtype == np.uint16 else piece)
        return one.repeat(times, *[1] * (piece.ndim - 1)).contiguous()

    def measure(self, launches: Sequence[Launch], *, early: bool) -> float:
        # Many in a graph: what is between one replay and the next must not count.
        many = list(launches) * -(-LAUNCHES // len(launches))
        self.launcher.early = early
        try:
            return self._measured(self._captured(many)) / len(many)
        finally:
            self.launcher.early = False

    def _captured(self, launches: Sequence[Launch]) -> Any:
        launches[0]()  # whatever is to be loaded is loaded before
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for launch in launches:
                launch()
        return graph

    def _measured(self, graph: Any) -> float:
        """Seconds of a replay."""
        one = self._seconds(graph, 3)
        times = max(1, math.ceil(SECONDS / max(one, 1e-6)))
        return statistics.median(self._seconds(graph, times) for _ in range(REPEATS))

    def _seconds(self, graph: Any, times: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()  # so that the first that is measured has no cold start
        start.record()
        for _ in range(times):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / times


def packed_bytes(n_rows: int, width: int) -> int:
    q, d, s = packed_shapes(n_rows, width)
    return math.prod(q) + 4 * math.prod(d) + 2 * math.prod(s)


def distance(found: NDArray[Any], exact: NDArray[np.float64]) -> float:
    """Relative, of all together; infinite if anything is NaN."""
    with np.errstate(all="ignore"):
        far = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    return far if math.isfinite(far) else math.inf


def pause() -> None:
    """Between sections: clocks and temperature settle."""
    time.sleep(0.5)
