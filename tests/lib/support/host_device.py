"""The CPU in a CUDA device's place: numpy arrays, kernels run by the shim."""

from __future__ import annotations

import numpy as np
import pytest
from shim.launcher import HostLauncher
from shim.machine import host_problem

from specdec.core.backend import cuda
from specdec.core.backend.cuda.device import Device, Numpy, Shape
from specdec.cuda_kernels.kernel import Array


class HostDevice(Device):
    name = "cuda"
    details = "run by the CPU"
    launcher: HostLauncher

    def __init__(self, seed: int = 0) -> None:
        self.launcher = HostLauncher(seed)
        self.fetched: list[Shape] = []  # of each copy to the host

    def empty(self, shape: Shape, dtype: str) -> Array:
        """Numbers that nobody expects."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.full(size, 0xF5, np.uint8).view(dtype).reshape(shape)

    def zeros(self, shape: Shape, dtype: str) -> Array:
        return np.zeros(shape, dtype)

    def put(self, values: Numpy) -> Array:
        return np.array(values, order="C")

    def get(self, array: Array) -> Numpy:
        self.fetched.append(array.shape)
        return np.array(array)

    def write(self, array: Array, values: Numpy) -> None:
        array[...] = values

    def copy(self, target: Array, source: Array) -> None:
        target[...] = source

    def wait(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 1 << 40


def use_for_cuda(monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """`--device cuda` is the CPU from here on."""
    if reason := host_problem():
        pytest.skip(reason)
    monkeypatch.setattr(cuda, "unavailable_reason", lambda index: None)
    monkeypatch.setattr(cuda, "open_device", lambda index: HostDevice(seed))
