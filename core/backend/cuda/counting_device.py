"""A device that only counts: the backend runs on it as on any other, and nothing is computed.

So what a model will take is known from the very code that will take it, before the first byte of
it is read. Arrays are one number that is read again and again; each holds a lease on the bytes that
it would have, until the last view of it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ....cuda_kernels.kernel import Argument, Array, Dim, Kernel, Launcher
from .device_contract import Device, Mirror, Numpy, Shape

T = TypeVar("T")


class CountedPool:
    """Bytes in use, now and at most."""

    def __init__(self) -> None:
        self.live = self.most = 0

    def change(self, n_bytes: int) -> None:
        self.live += n_bytes
        self.most = max(self.most, self.live)


class _Lease:
    def __init__(self, pool: CountedPool, n_bytes: int) -> None:
        self._pool, self._n_bytes = pool, n_bytes
        pool.change(n_bytes)

    def __del__(self) -> None:
        self._pool.change(-self._n_bytes)


class PlannedArray(np.ndarray[Any, Any]):
    lease: _Lease | None = None

    def __array_finalize__(self, of: Any) -> None:
        self.lease = getattr(of, "lease", None)

    def __setitem__(self, key: Any, value: Any) -> None:
        """It stays what it is."""


class PlannedLauncher(Launcher):
    """Checks as every launcher does, and notes what would be started."""

    def __init__(self, n_processors: int, shared_of_a_block: int) -> None:
        self.n_processors, self.shared_of_a_block = n_processors, shared_of_a_block
        self.n_started = 0
        self.kernels: dict[Kernel, None] = {}

    def pointer(self, array: Array) -> int:
        return 0

    def start(
        self, kernel: Kernel, grid: Dim, block: Dim, arguments: Sequence[Argument], shared: int
    ) -> None:
        self.n_started += 1
        self.kernels[kernel] = None


class PlannedDevice(Device):
    """In the place of `like`. `pool` is where arrays are counted from here on."""

    has_memory = False
    launcher: PlannedLauncher

    def __init__(self, like: Device) -> None:
        self._like, self.name, self.details = like, like.name, like.details
        self.reserved_bytes = like.reserved_bytes
        self._start(like.launcher.n_processors, like.launcher.shared_of_a_block)

    def _start(self, n_processors: int, shared_of_a_block: int) -> None:
        self.launcher = PlannedLauncher(n_processors, shared_of_a_block)
        self.pool, self.of_graphs = CountedPool(), CountedPool()

    @property
    def live_bytes(self) -> int:
        return self.pool.live

    def empty(self, shape: Shape, dtype: str) -> Array:
        kind = np.dtype(dtype)
        shape = tuple(int(n) for n in shape)
        made = np.broadcast_to(np.zeros((), kind), shape).view(PlannedArray)
        n_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        made.lease = _Lease(self.pool, self.taken_bytes(n_bytes))
        return made

    zeros = empty

    def put(self, values: Numpy) -> Array:
        return self.empty(values.shape, values.dtype.name)

    def get(self, array: Array) -> Numpy:
        return np.zeros(array.shape, array.dtype)

    def write(self, array: Array, values: Numpy) -> None:
        pass

    def shared(self, shape: Shape, dtype: str) -> tuple[Array, Numpy]:
        memory = np.zeros(shape, dtype)  # the host's
        return memory, memory

    def copy(self, target: Array, source: Array) -> None:
        pass

    def wait(self) -> None:
        pass

    def as_bytes(self, array: Array) -> Array:
        shape = *array.shape[:-1], array.shape[-1] * array.dtype.itemsize
        made = np.broadcast_to(np.zeros((), np.uint8), shape).view(PlannedArray)
        made.lease = array.lease
        return made

    def matmul(self, a: Array, w: Array, out: Array) -> None:
        self.launcher.n_started += 1

    def mirror(self, n_bytes: int) -> Mirror:
        return PlannedMirror(self, n_bytes)

    def free_bytes(self) -> int:
        return self._like.free_bytes()

    def taken_bytes(self, n_bytes: int) -> int:
        return self._like.taken_bytes(n_bytes)

    def repeatable(self, work: Callable[[], T]) -> Callable[[], T]:
        """Graphs have memory of their own, which all of them share."""
        outside, self.pool = self.pool, self.of_graphs
        try:
            made = work()
        finally:
            self.pool = outside
        return lambda: made


class PlannedMirror(Mirror):
    def __init__(self, device: PlannedDevice, n_bytes: int) -> None:
        self.host = np.zeros(n_bytes, np.uint8)
        self._there = device.empty((n_bytes,), "uint8")

    def ready(self) -> None:
        pass

    def send(self, n_bytes: int) -> None:
        pass

    def view(self, start: int, shape: Shape, dtype: str) -> Array:
        """On the lease of the whole."""
        made = np.broadcast_to(np.zeros((), dtype), shape).view(PlannedArray)
        made.lease = self._there.lease
        return made
