"""A CUDA device: memory, streams and graphs are torch's, kernels are launched beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ....cuda_kernels.launch import DeviceLauncher
from .device import Device, Numpy, Shape

T = TypeVar("T")
_WHOLE, _ALONE, _ALONE_WHOLE = 512, 10 << 20, 2 << 20  # bytes


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
        self._pool = torch.cuda.graph_pool_handle()  # graphs run one after the other

    def empty(self, shape: Shape, dtype: str) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=self._where)

    def zeros(self, shape: Shape, dtype: str) -> Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self._where)

    def put(self, values: Numpy) -> Tensor:
        return torch.from_numpy(np.array(values, order="C")).to(self._where)

    def get(self, array: Tensor) -> Numpy:
        found: Numpy = array.cpu().numpy()
        return found

    def write(self, array: Tensor, values: Numpy) -> None:
        array.copy_(torch.from_numpy(np.array(values, order="C")))

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

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

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._where)
        return int(free)

    def repeatable(self, work: Callable[[], T]) -> Callable[[], T]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            made = work()

        def repeat() -> T:
            graph.replay()
            return made

        return repeat


class _Staging:
    """Two pieces of pinned memory that take turns, and a stream on which they are copied."""

    def __init__(self, where: torch.device, n_bytes: int) -> None:
        self._where, self._stream = where, torch.cuda.Stream(where)
        self._pieces = [torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True) for _ in "12"]
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
