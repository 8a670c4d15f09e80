"""Host time of a launch that is not part of a graph: all of it but the driver's own.

    PYTHONPATH=tests/lib:tests/cuda_host python tests/bench/launch_cost.py

The launches are those of a step of the bundled model with three rows. Arrays are torch's, in host
memory; the driver's function is one of the C library that takes no time.
"""

from __future__ import annotations

import ctypes
import sys
import time
from threading import local
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from support.host_device import HostDevice
from support.running import Machine, Running, random_tokens

from nextn.core import nano
from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.cuda_kernels.driver import CudaDriver, Launch
from nextn.cuda_kernels.image import shapes
from nextn.cuda_kernels.launch import DeviceLauncher

REPEATS = 200


class NoDriver(CudaDriver):
    """`CudaDriver` for arrays of the host (-1)."""

    architecture, version, index = 90, 13000, -1
    n_processors, shared_of_a_block = 132, 227 << 10

    def __init__(self) -> None:
        library: Any = ctypes.CDLL(None)
        calls = SimpleNamespace(
            cuLaunchKernelEx=library.sched_yield, cuGetErrorName=library.strerror
        )
        self._launch, self._thread = Launch(calls), local()
        self._thread.entered = True

    def load(self, image: bytes) -> Any:
        return list(shapes(image))

    def function(self, module: Any, name: str) -> int:
        return 1

    def allow_shared(self, function: int, size: int) -> None:
        pass

    def stream(self) -> int:
        return 0


def launches_of_a_step() -> list[tuple[Any, ...]]:
    device = HostDevice()
    backend = CudaBackend(device)
    text = Running(Machine(build_model(open_gguf(nano.path()), backend), backend))
    noted, launch = [], device.launcher.launch

    def note(kernel: Any, grid: Any, arguments: Any, **more: Any) -> None:
        noted.append((kernel, grid, arguments, more))
        launch(kernel, grid, arguments, **more)

    device.launcher.launch = note  # type: ignore[method-assign]
    text.append(random_tokens(3))
    return noted


def main() -> None:
    launcher, best = DeviceLauncher(driver=NoDriver()), np.inf
    noted = [
        (kernel, grid, [_tensor(a) for a in arguments], more)
        for kernel, grid, arguments, more in launches_of_a_step()
    ]
    for _ in range(REPEATS):
        start = time.process_time()
        for kernel, grid, arguments, more in noted:
            launcher.launch(kernel, grid, arguments, **more)
        best = min(best, (time.process_time() - start) / len(noted))
    n_arguments = np.mean([len(arguments) for _, _, arguments, _ in noted])
    each = f"{len(noted)} launches of {n_arguments:.0f} arguments"
    sys.stdout.write(f"{1e6 * best:.1f} us a launch: {each}\n")


def _tensor(argument: Any) -> Any:
    return torch.from_numpy(argument) if isinstance(argument, np.ndarray) else argument


if __name__ == "__main__":
    main()
