"""GPUs by their architecture, for kernels that are compiled where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from ....cuda_kernels.cache import CubinCache, default_folder
from ....cuda_kernels.compile import (
    CompileError,
    Compiler,
    nvrtc_problem,
    supported_architectures,
)
from ....cuda_kernels.device import OLDEST_ARCHITECTURE
from ....cuda_kernels.kernel import Kernel
from ...errors import ConfigError, MissingDependencyError, ModelError
from ..interface import Report
from ..layers import KvTypes
from .backend import CudaBackend
from .counting_device import PlannedDevice


class _Gpu(NamedTuple):
    """What kernels are chosen by; the same for all GPUs of an architecture, or nearly so."""

    n_processors: int
    shared_of_a_block: int  # bytes


_GPUS = {
    80: _Gpu(108, 163 << 10),
    86: _Gpu(84, 99 << 10),
    89: _Gpu(128, 99 << 10),
    90: _Gpu(132, 227 << 10),
    100: _Gpu(148, 227 << 10),
    103: _Gpu(148, 227 << 10),
    120: _Gpu(170, 99 << 10),
}


class AbsentDevice(PlannedDevice):
    """A planned device that is like no other."""

    def __init__(self, arch: int) -> None:
        self.name, self.details, self.reserved_bytes = f"cuda (sm_{arch})", "", 0
        self._start(*_GPUS[arch])

    def free_bytes(self) -> int:
        return 1 << 60

    def taken_bytes(self, n_bytes: int) -> int:
        return n_bytes


def absent_backend(arch: int, kv_types: KvTypes) -> CudaBackend:
    """A backend that plans for a GPU, and computes nothing."""
    return CudaBackend(AbsentDevice(arch), kv_types)


def check_architecture(arch: int) -> None:
    """ConfigError if nothing can be compiled for it here."""
    if reason := nvrtc_problem():
        raise MissingDependencyError(f"--device cuda: {reason}")
    able = [a for a in sorted(_GPUS) if a in supported_architectures()]
    if arch not in able:
        known = ", ".join(map(str, able))
        why = "too old: 80 or newer is needed" if arch < OLDEST_ARCHITECTURE else "not known here"
        raise ConfigError(f"--arch {arch}: {why}; choose of {known} (compute capability times ten)")


class Compiled(Struct, frozen=True):
    n_sources: int  # that were not in the cache
    seconds: float
    folder: Path


def compile_kernels(kernels: Iterable[Kernel], arch: int, report: Report) -> Compiled:
    """Into the cache, several at a time."""
    compiler, folder = Compiler(CubinCache(default_folder())), default_folder()
    sources = dict.fromkeys(kernel.source for kernel in kernels)
    wanted = [(source, arch) for source in sources if compiler.lacks(source, arch)]
    start = time.perf_counter()
    try:
        compiler.compile_all(
            wanted, lambda done, of: report(f"compiling {of} kernels for sm_{arch}", done / of)
        )
    except CompileError as error:
        raise ModelError(f"--device cuda: a kernel cannot be compiled: {error}") from None
    if any(compiler.lacks(*pair) for pair in wanted):
        raise ModelError(f"kernels were compiled, but could not be kept: cannot write to {folder}")
    return Compiled(len(wanted), time.perf_counter() - start, folder)
