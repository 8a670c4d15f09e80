"""The CPU in a CUDA device's place: numpy arrays, kernels run by the shim."""

from __future__ import annotations

import numpy as np
import pytest
from shim.launcher import HostLauncher, aligned
from shim.machine import host_problem

from nextn.core.backend import cuda
from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.cuda.device_contract import Device, Mirror, Numpy, Shape
from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.backend.interface import Backend
from nextn.cuda_kernels.kernel import Array


class HostDevice(Device):
    name = "cuda"
    details = "run by the CPU"
    launcher: HostLauncher

    def __init__(self, seed: int = 0) -> None:
        self.launcher = HostLauncher(seed)
        self.fetched: list[Shape] = []  # of each copy to the host
        self.free = 1 << 40
        self.most_staged = 0
        self._staged = [np.empty(0, np.uint8) for _ in "12"]
        self._on_the_way: list[tuple[Numpy, Array] | None] = [None, None]
        self._turn = 0
        self.sent: list[int] = []  # bytes of each copy from a mirror

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

    def shared(self, shape: Shape, dtype: str) -> tuple[Array, Numpy]:
        memory = np.zeros(shape, dtype)
        return memory, memory

    def copy(self, target: Array, source: Array) -> None:
        target[...] = source

    def wait(self) -> None:
        pass

    def stage(self, n_bytes: int) -> Numpy:
        """One of two, and what was sent from it leaves only now: as late as may be."""
        assert n_bytes <= self.staged_bytes
        self._turn = 1 - self._turn
        self._deliver(self._turn)
        if len(self._staged[self._turn]) < n_bytes:
            self._staged[self._turn] = np.empty(n_bytes, np.uint8)
        self.most_staged = max(self.most_staged, sum(map(len, self._staged)))
        self._staged[self._turn][:] = 0xF5
        return self._staged[self._turn][:n_bytes]

    def send(self, staged: Numpy, target: Array) -> None:
        assert staged.shape == target.shape
        assert staged.dtype == target.dtype
        assert self._on_the_way[self._turn] is None, "staged once, sent once"
        self._on_the_way[self._turn] = staged, target

    def arrive(self) -> None:
        for turn in (1 - self._turn, self._turn):
            self._deliver(turn)

    def _deliver(self, turn: int) -> None:
        found, self._on_the_way[turn] = self._on_the_way[turn], None
        if found is not None:
            staged, target = found
            target[...] = staged

    def as_bytes(self, array: Array) -> Array:
        return array.view(np.uint8)

    def matmul(self, a: Array, w: Array, out: Array) -> None:
        with np.errstate(all="ignore"):  # rows that are nobody's hold anything
            out[...] = _floats(a) @ _floats(w).T

    def mirror(self, n_bytes: int) -> Mirror:
        return HostMirror(self, n_bytes)

    def free_bytes(self) -> int:
        """Before anything is taken."""
        return self.free


def _floats(bfloat16: Numpy) -> Numpy:
    return (bfloat16.astype(np.uint32) << 16).view(np.float32)


class HostMirror(Mirror):
    """Sees when the host writes to what may not have left yet."""

    def __init__(self, device: HostDevice, n_bytes: int) -> None:
        self._device = device
        self.host, self._there = np.zeros(n_bytes, np.uint8), aligned(n_bytes, np.uint8)
        self._leaving: Numpy | None = None

    def ready(self) -> None:
        if self._leaving is not None:
            assert np.array_equal(self.host[: len(self._leaving)], self._leaving)
        self._leaving = None

    def send(self, n_bytes: int) -> None:
        assert self._leaving is None, "sent again before it was ready"
        self._leaving = self.host[:n_bytes].copy()
        self._there[:n_bytes] = self._leaving
        self._device.sent.append(n_bytes)

    def view(self, start: int, shape: Shape, dtype: str) -> Array:
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._there[start : start + n_bytes].view(dtype).reshape(shape)


def use_for_cuda(
    monkeypatch: pytest.MonkeyPatch,
    seed: int = 0,
    prompts: PromptSizes | None = None,
    device: HostDevice | None = None,
) -> None:
    """`--device cuda` is the CPU from here on, or this device. `prompts`: others than for real
    models."""
    if reason := host_problem():
        pytest.skip(reason)
    monkeypatch.setattr(cuda, "unavailable_reason", lambda index: None)
    monkeypatch.setattr(cuda, "open_device", lambda index: device or HostDevice(seed))
    if prompts is not None:
        monkeypatch.setattr(CudaBackend, "prompts", prompts)


def device_of(backend: Backend) -> HostDevice:
    """The device of a CUDA backend, if it is the CPU: only that one counts copies."""
    assert isinstance(backend, CudaBackend)
    device = backend.device
    if not isinstance(device, HostDevice):
        pytest.skip("only the shim counts copies")
    return device
