"""Kernels on a device: compiled or taken from the cache, loaded once, launched on torch's stream.

Nothing is allocated and nothing waits, so that launches can be captured in a CUDA graph; `warm`
the kernels before, because loading one in a capture fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cache import CubinCache, default_folder
from .compile import Compiler, Report
from .driver import CudaDriver, Driver
from .image import Shape, shapes
from .kernel import Array, Dim, Kernel, Launcher, Source

FREELY_SHARED = 48 << 10  # bytes of shared memory, static and dynamic, that need no request
FIRST_EARLY = 90  # the architecture from which on kernels know how to wait for the one before


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    function: int
    shape: Shape


class DeviceLauncher(Launcher):
    """`early`: kernels may start before the one before them on the stream has ended.

    That is so where the device can do it (from compute capability 9.0 on). All that is launched
    early has to say `wait_for_previous()` before it reads what others wrote, before it writes and
    before it ends; ours does.
    """

    def __init__(
        self,
        index: int = 0,
        *,
        early: bool = True,
        compiler: Compiler | None = None,
        driver: Driver | None = None,
    ) -> None:
        self._driver = CudaDriver(index) if driver is None else driver
        self._compiler = compiler or Compiler(CubinCache(default_folder()))
        self._modules: dict[Source, tuple[Any, dict[str, Shape]]] = {}
        self._loaded: dict[Kernel, LoadedKernel] = {}
        self.n_processors = self._driver.n_processors
        self.shared_of_a_block = self._driver.shared_of_a_block
        self.can_start_early = self._driver.architecture >= FIRST_EARLY
        self.early = early and self.can_start_early
        self._follows_a_kernel = False

    def warm(self, kernels: Iterable[Kernel], report: Report | None = None) -> None:
        """Compile and load; nothing is launched."""
        wanted = [kernel for kernel in kernels if kernel not in self._loaded]
        new = {k.source for k in wanted} - self._modules.keys()
        pairs = [(source, self._driver.architecture) for source in new]
        for (source, _), cubin in self._compiler.compile_all(pairs, report).items():
            self._modules[source] = self._driver.load(cubin.image), shapes(cubin.image)
        for kernel in wanted:
            self._loaded[kernel] = self._load(kernel)

    def pointer(self, array: Array) -> int:
        return self._driver.check(array)

    def begin_after_all(self) -> None:
        self._follows_a_kernel = False

    def start(
        self, kernel: Kernel, grid: Dim, block: Dim, arguments: Sequence[np.generic], shared: int
    ) -> None:
        if kernel not in self._loaded:
            self.warm([kernel])
        loaded = self._loaded[kernel]
        check_arguments(kernel, loaded.shape, arguments)
        packed = Packed(arguments)
        early = self.early and self._follows_a_kernel
        self._driver.start(loaded.function, grid, block, shared, packed.address, early=early)
        self._follows_a_kernel = True

    def _load(self, kernel: Kernel) -> LoadedKernel:
        module, found = self._modules[kernel.source]
        if kernel.name not in found:
            raise ValueError(f"{kernel.source.label} has no kernel {kernel.name}")
        wanted = kernel.shared + kernel.dynamic_shared
        if wanted > self.shared_of_a_block:
            raise ValueError(
                f"{kernel.name} may need {wanted} bytes of shared memory; "
                f"a block has {self.shared_of_a_block} on this device"
            )
        function = self._driver.function(module, kernel.name)
        if wanted > FREELY_SHARED:
            self._driver.allow_shared(function, kernel.dynamic_shared)
        return LoadedKernel(function, found[kernel.name])


class Packed:
    """Arguments as the driver reads them: an array of addresses, one of each value.

    They are good for as long as this object lives.
    """

    def __init__(self, arguments: Sequence[np.generic]) -> None:
        slots = [-(-a.itemsize // 8) for a in arguments]  # each begins at a multiple of 8
        self._values = np.zeros(sum(slots), np.uint64)
        starts = np.cumsum([0, *slots], dtype=np.uint64)[:-1] * np.uint64(8)
        raw = self._values.view(np.uint8)
        for argument, start in zip(arguments, starts, strict=True):
            raw[int(start) : int(start) + argument.itemsize] = np.frombuffer(
                argument.tobytes(), np.uint8
            )
        self._addresses = np.uint64(self._values.ctypes.data) + starts
        self.address = self._addresses.ctypes.data


def check_arguments(kernel: Kernel, shape: Shape, arguments: Sequence[np.generic]) -> None:
    """The driver would not notice."""
    sizes = tuple(argument.itemsize for argument in arguments)
    if sizes != shape.parameters:
        raise ValueError(
            f"{kernel.name} takes {len(shape.parameters)} arguments of {shape.parameters} bytes, "
            f"got {len(sizes)} of {sizes}"
        )
