"""Kernels on a device: compiled or taken from the cache, loaded once, launched on torch's stream.

Nothing is allocated and nothing waits, so that launches can be captured in a CUDA graph; `warm`
the kernels before, because loading one in a capture fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from .arguments import PackedArguments, boxed
from .cache import CubinCache, default_folder
from .compile import Compiler
from .driver import CudaDriver, Driver
from .image import Shape, shapes
from .kernel import Argument, Array, Dim, Kernel, Launcher, Report, Source

FREELY_SHARED = 48 << 10  # bytes of shared memory, static and dynamic, that need no request
FIRST_EARLY = 90  # the architecture from which on kernels know how to wait for the one before
EARLY_IN_GRAPHS = 12030  # the driver, by its CUDA, from which on a graph keeps early starts


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    function: int
    shape: Shape
    raw: Any = None  # CuPy's, which launches itself
    by_types: dict[tuple[type, ...], PackedArguments] = field(default_factory=dict)

    def packed(self, kernel: Kernel, arguments: Sequence[Argument]) -> PackedArguments:
        """Memory for arguments of these types."""
        types = tuple(map(type, arguments))
        found = self.by_types.get(types)
        if found is None:
            found = self.by_types[types] = PackedArguments(kernel, self.shape, arguments)
        return found


class DeviceLauncher(Launcher):
    """`early`: kernels may start before the one before them on the stream has ended.

    That is so where the device can do it (from compute capability 9.0 on) and the driver can put it
    into graphs (from CUDA 12.3 on). All that is launched
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
        can_wait = self._driver.architecture >= FIRST_EARLY
        self.can_start_early = can_wait and self._driver.version >= EARLY_IN_GRAPHS
        self.early = early and self.can_start_early
        self._follows_a_kernel = False
        self._filling = Lock()

    def warm(self, kernels: Iterable[Kernel], report: Report | None = None) -> None:
        wanted = [kernel for kernel in kernels if kernel not in self._loaded]
        new = {k.source for k in wanted} - self._modules.keys()
        raw = {k.source for k in wanted if k.is_snapshot}
        pairs = [(source, self._driver.architecture) for source in new]
        for (source, _), cubin in self._compiler.compile_all(pairs, report).items():
            load = self._driver.load_raw if source in raw else self._driver.load
            self._modules[source] = load(cubin.image), shapes(cubin.image)
        for kernel in wanted:
            self._loaded[kernel] = self._load(kernel)

    def pointer(self, array: Array) -> int:
        return self._driver.check(array)

    def begin_after_all(self) -> None:
        self._follows_a_kernel = False

    def start(
        self, kernel: Kernel, grid: Dim, block: Dim, arguments: Sequence[Argument], shared: int
    ) -> None:
        loaded = self._loaded.get(kernel)
        if loaded is None:
            self.warm([kernel])
            loaded = self._loaded[kernel]
        if loaded.raw is not None:
            loaded.packed(kernel, arguments)  # which checks their sizes
            values = [boxed(argument, self._driver.check) for argument in arguments]
            self._driver.start_raw(loaded.raw, grid, block, shared, values)
            self._follows_a_kernel = True
            return
        with self._filling:  # which waits while the driver has no room for more launches
            packed = loaded.packed(kernel, arguments)
            packed.fill(arguments, self._driver.check)
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
        if kernel.is_snapshot:
            return LoadedKernel(0, found[kernel.name], self._driver.raw_kernel(module, kernel.name))
        function = self._driver.function(module, kernel.name)
        if wanted > FREELY_SHARED:
            self._driver.allow_shared(function, kernel.dynamic_shared)
        return LoadedKernel(function, found[kernel.name])
