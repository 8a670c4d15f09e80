"""What a kernel is, what it needs of the hardware, and how it is started.

A launcher module (`norm_quant.py` beside `norm_quant.cu`) declares `Source`s and `Kernel`s, checks
shapes, chooses the grid and calls `Launcher.launch`. Whether that runs on a GPU or, in tests, on
the CPU through the shim is the launcher's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
Array = Any  # a torch tensor on the device, a numpy array on the shim: contiguous, made before
Argument = Any  # an Array, None (a null pointer), int (32 bits), float (32 bits) or a numpy scalar
Dim = tuple[int, int, int]
Report = Callable[[int, int], None]  # sources that are compiled, and all of them


@dataclass(frozen=True, slots=True)
class Source:
    """A `.cu` file of this folder, compiled once for each set of definitions."""

    file: str
    defines: tuple[tuple[str, str | int], ...] = ()

    @property
    def path(self) -> Path:
        return FOLDER / self.file

    @property
    def label(self) -> str:
        """`qmm.cu[FORMAT=Q4_K]`"""
        shown = ",".join(f"{name}={value}" for name, value in self.defines)
        return f"{self.file}[{shown}]" if shown else self.file


@dataclass(frozen=True, slots=True)
class Kernel:
    """An `extern "C" __global__` function of a source, and the limits that tests hold it to."""

    name: str
    source: Source
    reference: str  # the op of the reference backend that it equals, or the part of one
    threads: int  # of a block, at most: `__launch_bounds__`
    registers: int  # per thread, at most, on every architecture
    shared: int = 0  # bytes of static shared memory, at most
    dynamic_shared: int = 0  # bytes of dynamic shared memory of any launch, at most
    stack: int = 0  # bytes of local memory per thread, at most; never for spills
    is_snapshot: bool = False  # moves saved state: loaded and launched through CuPy

    def __hash__(self) -> int:
        return hash(self.name)  # every launch looks its kernel up


class Launcher(ABC):
    """Starts kernels, on whatever runs them."""

    n_processors: int  # streaming multiprocessors
    shared_of_a_block: int = 227 << 10  # bytes of shared memory that a block may have: of an H200

    @abstractmethod
    def pointer(self, array: Array) -> int:
        """Where an array lies."""

    @abstractmethod
    def start(
        self, kernel: Kernel, grid: Dim, block: Dim, arguments: Sequence[Argument], shared: int
    ) -> None:
        """Put it on the stream; `shared`: bytes of dynamic shared memory."""

    def warm(self, kernels: Iterable[Kernel], report: Report | None = None) -> None:
        """Compile and load kernels that are going to be launched."""

    def begin_after_all(self) -> None:
        """What is launched next begins when all before it has ended, whatever that was. To be said
        after a copy: only of kernels is it known how they wait for each other."""

    def launch(
        self,
        kernel: Kernel,
        grid: int | tuple[int, ...],
        arguments: Sequence[Argument],
        *,
        block: int | tuple[int, ...] | None = None,
        shared: int = 0,
    ) -> None:
        """`block`: `kernel.threads` unless said. A kernel whose grid is empty is not started."""
        dims = _dim(grid), _dim(kernel.threads if block is None else block)
        if 0 in dims[0]:
            return
        x, y, z = dims[1]
        if x * y * z > kernel.threads or shared > kernel.dynamic_shared:
            raise ValueError(
                f"{kernel.name}: a block of {dims[1]} and {shared} bytes of dynamic shared memory; "
                f"it declares {kernel.threads} threads and {kernel.dynamic_shared} bytes"
            )
        self.start(kernel, *dims, arguments, shared)


def _dim(size: int | tuple[int, ...]) -> Dim:
    if isinstance(size, int):
        return size, 1, 1
    x, y, z = (*size, 1, 1)[:3]
    return x, y, z
