"""What the CUDA backend needs of a device: arrays, kernels on them, and runs that can be repeated.

Tests put the CPU in its place, with the kernels' sources run thread by thread; so nothing else in
this folder may know torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ....cuda_kernels.kernel import Array, Launcher

T = TypeVar("T")
Numpy = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Mirror(ABC):
    """Memory of the host, and as much on the device."""

    host: Numpy  # bytes

    @abstractmethod
    def ready(self) -> None:
        """Waits until what was sent last has left: the host's may then be written to again."""

    @abstractmethod
    def send(self, n_bytes: int) -> None:
        """The first so many bytes, in the order of launches, without waiting."""

    @abstractmethod
    def view(self, start: int, shape: Shape, dtype: str) -> Array:
        """An array on the device that begins at this byte, a multiple of its elements' size."""


class Device(ABC):
    """Arrays can be sliced, indexed and assigned to as numpy's can, and are contiguous."""

    name: str
    details: str = ""
    launcher: Launcher
    has_memory: bool = True  # False: it only counts, and nothing need be written to it
    staged_bytes: int = 32 << 20  # that may be staged at once
    reserved_bytes: int = 0  # what libraries and the driver may take later on, beside arrays

    def activate(self) -> None:
        """Make this device the current one of the calling thread."""

    @abstractmethod
    def empty(self, shape: Shape, dtype: str) -> Array:
        """Memory with anything in it. `dtype` by numpy's name; uint16 stands for bfloat16."""

    @abstractmethod
    def zeros(self, shape: Shape, dtype: str) -> Array:
        """Memory that is zero."""

    @abstractmethod
    def put(self, values: Numpy) -> Array:
        """A copy on the device."""

    @abstractmethod
    def get(self, array: Array) -> Numpy:
        """A copy on the host, after all that was launched."""

    @abstractmethod
    def write(self, array: Array, values: Numpy) -> None:
        """New contents of the same shape, in the order of launches."""

    def post(self, array: Array, values: Numpy) -> None:
        """The same without waiting for what was launched before."""
        self.write(array, values)

    @abstractmethod
    def shared(self, shape: Shape, dtype: str) -> tuple[Array, Numpy]:
        """Zeros that kernels write and the host sees at once: as an array, and as the host's. What
        a kernel wrote before it published something there (`__threadfence_system`) is there too."""

    def is_idle(self) -> bool:
        """All that was launched has ended. An exception, if something has failed."""
        return True

    @abstractmethod
    def copy(self, target: Array, source: Array) -> None:
        """To an array of the same shape; the source may be on another device. In the order of
        launches of both."""

    @abstractmethod
    def wait(self) -> None:
        """Until all that was launched has been done."""

    def stage(self, n_bytes: int) -> Numpy:
        """Host memory to fill and then to `send`. It may have been staged before: what was sent
        from it has left then. No more than `staged_bytes`."""
        return np.empty(n_bytes, np.uint8)

    def send(self, staged: Numpy, target: Array) -> None:
        """Begin to copy what was staged last to an array of its shape."""
        self.write(target, staged)

    def arrive(self) -> None:
        """What was sent is there for all that is launched from here on; staging ends."""

    @abstractmethod
    def as_bytes(self, array: Array) -> Array:
        """The same memory as uint8, (rows, bytes of a row)."""

    @abstractmethod
    def matmul(self, a: Array, w: Array, out: Array) -> None:
        """out (M, N) = a (M, K) @ w (N, K).T: bfloat16, summed and left in float32. Rows may
        lie farther apart than they are long. How a number is summed follows from the shapes and
        its place in `out` alone, whatever the others are."""

    @abstractmethod
    def mirror(self, n_bytes: int) -> Mirror:
        """Memory of the host and of the device."""

    @abstractmethod
    def free_bytes(self) -> int:
        """What may still be allocated."""

    def taken_bytes(self, n_bytes: int) -> int:
        """What an array of so many bytes really takes."""
        return n_bytes

    def repeatable(self, work: Callable[[], T]) -> Callable[[], T]:
        """`work` as something that is quicker to do again: same launches, same arrays. What it
        returns is overwritten the next time. It has been done once before."""
        return work
