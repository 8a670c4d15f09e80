"""A CUDA device: memory, streams and graphs are torch's, kernels are launched beside it."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ....cuda_kernels.kernel import Launcher
from ....cuda_kernels.launch import DeviceLauncher
from .device_contract import Device, Mirror, Numpy, Shape

T = TypeVar("T")
_WHOLE, _ALONE, _ALONE_WHOLE = 512, 10 << 20, 2 << 20  # bytes
_MOST_PINNED = 16 << 20  # bytes of a copy to the host


class TorchDevice(Device):
    # An estimate: machine code and the stacks of its threads, cuBLAS with 32 MiB of its own, and
    # what is left over between blocks of the allocator.
    reserved_bytes = 384 << 20

    def __init__(self, index: int = 0) -> None:
        self._where = torch.device("cuda", index)
        torch.cuda.set_device(self._where)
        self.name = f"cuda:{index}" if index else "cuda"
        self.details = torch.cuda.get_device_name(self._where)
        self.launcher = DeviceLauncher(index)
        self._staging: _Staging | None = None
        # Parts of a long sum stay float32 on their way, too.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self._pool = torch.cuda.graph_pool_handle()  # graphs run one after the other
        self._capturing = torch.cuda.Stream(self._where)  # the default one cannot
        self._anchor = self._capture(self._fill_a_byte)[0]

    def activate(self) -> None:
        torch.cuda.set_device(self._where)

    def empty(self, shape: Shape, dtype: str) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=self._where)

    def zeros(self, shape: Shape, dtype: str) -> Tensor:
        made = torch.zeros(shape, dtype=getattr(torch, dtype), device=self._where)
        self.launcher.begin_after_all()
        return made

    def put(self, values: Numpy) -> Tensor:
        there = torch.from_numpy(np.array(values, order="C")).to(self._where)
        self.launcher.begin_after_all()
        return there

    def get(self, array: Tensor) -> Numpy:
        self.launcher.begin_after_all()
        if array.nbytes > _MOST_PINNED:
            return _numpy(array.cpu())
        # Into memory that the device writes to by itself; torch gives it out again afterwards.
        there = self._pinned(array.shape, array.dtype)
        there.copy_(array, non_blocking=True)
        self.wait()
        return _numpy(there)

    def write(self, array: Tensor, values: Numpy) -> None:
        array.copy_(torch.from_numpy(np.array(values, order="C")))
        self.launcher.begin_after_all()

    def post(self, array: Tensor, values: Numpy) -> None:
        # Pinned, so that the copy is asynchronous; torch reuses the memory when the copy is done.
        there = torch.from_numpy(np.array(values, order="C"))
        array.copy_(self._pinned(there.shape, there.dtype).copy_(there), non_blocking=True)
        self.launcher.begin_after_all()

    def shared(self, shape: Shape, dtype: str) -> tuple[Tensor, Numpy]:
        # Memory from cudaHostAlloc has one address for the host and all devices.
        memory = self._pinned(shape, getattr(torch, dtype)).zero_()
        return memory, _numpy(memory)

    def _pinned(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        return pinned(self._where, shape, dtype)

    def is_idle(self) -> bool:
        return bool(torch.cuda.current_stream(self._where).query())

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)
        self.launcher.begin_after_all()

    def wait(self) -> None:
        torch.cuda.current_stream(self._where).synchronize()

    def stage(self, n_bytes: int) -> Numpy:
        if self._staging is None:
            self._staging = _Staging(self._where, self.staged_bytes)
        return self._staging.next()[:n_bytes]

    def send(self, staged: Numpy, target: Tensor) -> None:
        assert self._staging is not None, "what is sent was staged"
        self._staging.send(staged, target)

    def arrive(self) -> None:
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    def taken_bytes(self, n_bytes: int) -> int:
        # As torch's allocator rounds: large blocks are pieces of memory of their own.
        whole = _ALONE_WHOLE if n_bytes >= _ALONE else _WHOLE
        return -(-n_bytes // whole) * whole

    def as_bytes(self, array: Tensor) -> Tensor:
        return array.view(torch.uint8)

    def matmul(self, a: Tensor, w: Tensor, out: Tensor) -> None:
        # One stream, and a shape always gets the same algorithm: cuBLAS then repeats every bit.
        left, right = a.view(torch.bfloat16), w.view(torch.bfloat16).t()
        torch.mm(left, right, torch.float32, out=out)
        self.launcher.begin_after_all()

    def mirror(self, n_bytes: int) -> Mirror:
        return TorchMirror(self._where, n_bytes, self.launcher)

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._where)
        return int(free)

    def repeatable(self, work: Callable[[], T]) -> Callable[[], T]:
        graph, made = self._capture(work)

        def repeat() -> T:
            graph.replay()
            self.launcher.begin_after_all()
            return made

        return repeat

    def _capture(self, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        self.wait()
        # Not by `torch.cuda.graph`: it gives all spare memory back to the driver, each time.
        with _no_collection(), torch.cuda.stream(self._capturing):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            self.launcher.begin_after_all()
            try:
                made = work()
            finally:
                graph.capture_end()
                self.launcher.begin_after_all()
        return graph, made

    def _fill_a_byte(self) -> Tensor:
        """The work of a graph that lives as long as the device: torch drops the pool's handle with
        the last graph in it, and the first capture of the next engine would fail."""
        return torch.zeros(1, dtype=torch.uint8, device=self._where)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage stays: modules and graphs of an engine that is gone may be in it, and unloading them
    is not permitted while this thread captures. It ends the capture with an error."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def pinned(where: torch.device, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Memory of the host that a device reaches by itself. It belongs to the current device of the
    calling thread, which may be another: that one would get a context, and its memory taken."""
    with torch.cuda.device(where):
        return torch.empty(shape, dtype=dtype, pin_memory=True)


class _Staging:
    """Two pieces of pinned memory that take turns, and a stream on which they are copied."""

    def __init__(self, where: torch.device, n_bytes: int) -> None:
        self._where, self._stream = where, torch.cuda.Stream(where)
        self._pieces = [pinned(where, (n_bytes,), torch.uint8) for _ in "12"]
        self._copied = [torch.cuda.Event() for _ in self._pieces]
        self._turn = 0

    def next(self) -> Numpy:
        self._turn = 1 - self._turn
        self._copied[self._turn].synchronize()  # at once, where nothing was copied yet
        found: Numpy = self._pieces[self._turn].numpy()
        return found

    def send(self, staged: Numpy, target: Tensor) -> None:
        # What the memory was used for before may still run.
        self._stream.wait_stream(torch.cuda.current_stream(self._where))
        with torch.cuda.stream(self._stream):
            target.copy_(torch.from_numpy(staged), non_blocking=True)
            self._copied[self._turn].record(self._stream)

    def close(self) -> None:
        self._stream.synchronize()


def _numpy(tensor: Tensor) -> Numpy:
    found: Numpy = tensor.numpy()
    return found


class TorchMirror(Mirror):
    def __init__(self, where: torch.device, n_bytes: int, launcher: Launcher) -> None:
        self._launcher = launcher
        self._pinned = pinned(where, (n_bytes,), torch.uint8)
        self._there = torch.empty(n_bytes, dtype=torch.uint8, device=where)
        self._where, self._has_left = where, torch.cuda.Event()
        self.host = self._pinned.numpy()

    def ready(self) -> None:
        self._has_left.synchronize()  # at once, if nothing has been sent

    def send(self, n_bytes: int) -> None:
        self._there[:n_bytes].copy_(self._pinned[:n_bytes], non_blocking=True)
        self._has_left.record(torch.cuda.current_stream(self._where))
        self._launcher.begin_after_all()

    def view(self, start: int, shape: Shape, dtype: str) -> Tensor:
        kind = getattr(torch, dtype)
        n_bytes = math.prod(shape) * kind.itemsize
        return self._there[start : start + n_bytes].view(kind).reshape(shape)
