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


class TorchDevice(Device):
    def __init__(self, index: int = 0) -> None:
        self._where = torch.device("cuda", index)
        torch.cuda.set_device(self._where)
        self.name = f"cuda:{index}" if index else "cuda"
        self.details = torch.cuda.get_device_name(self._where)
        self.launcher = DeviceLauncher(index)
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
