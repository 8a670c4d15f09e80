"""What kernel tests run on: the CPU shim with one order of threads or another, or a CUDA device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from nextn.cuda_kernels.kernel import Array, Launcher

from . import build
from .launcher import HostLauncher

Numpy = np.ndarray[Any, Any]


class Machine(ABC):
    launcher: Launcher

    @abstractmethod
    def put(self, array: Numpy) -> Array:
        """A copy that kernels can take."""

    @abstractmethod
    def get(self, array: Array) -> Numpy:
        """A copy, after all that was launched."""

    def garbage(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Array:
        """For results: NaN, or as integers numbers that nobody writes by chance."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        words = np.full(-(-size // 2), 0x7FF5, np.uint16)
        return self.put(words.view(np.uint8)[:size].view(dtype).reshape(shape))


class HostMachine(Machine):
    """Every array is a block of memory of its own and of exactly its size."""

    launcher: HostLauncher

    def __init__(self, seed: int) -> None:
        self.launcher = HostLauncher(seed)

    def put(self, array: Numpy) -> Array:
        return np.array(array, order="C")

    def get(self, array: Array) -> Numpy:
        return np.array(array)


class CudaMachine(Machine):
    def __init__(self, early: bool = False) -> None:
        launch = import_module("nextn.cuda_kernels.launch")
        self.launcher = launch.DeviceLauncher(early=early)
        self._torch = import_module("torch")

    def put(self, array: Numpy) -> Array:
        return self._torch.from_numpy(np.array(array, order="C")).cuda()

    def get(self, array: Array) -> Numpy:
        self._torch.cuda.synchronize()
        return np.array(array.cpu().numpy())


def host_problem() -> str | None:
    return build.unavailable_reason()


def cuda_problem() -> str | None:
    if find_spec("nextn.cuda_kernels.launch") is None:
        return "this build has no launcher for devices"
    reason: str | None = import_module("nextn.cuda_kernels.device").unavailable_reason()
    return reason
