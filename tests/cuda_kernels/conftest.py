"""Machine code of all kernels, compiled once and kept between runs; what kernels run on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from shim import sanitizer
from shim.machine import CudaMachine, HostMachine, Machine, cuda_problem, host_problem
from support.sass import disassembler

from specdec.cuda_kernels.cache import CubinCache, default_folder
from specdec.cuda_kernels.compile import ARCHITECTURES, Compiler, Cubin, nvrtc_problem
from specdec.cuda_kernels.kernel import Source
from specdec.cuda_kernels.registry import all_sources


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    if reason := nvrtc_problem():
        pytest.skip(reason)
    return Compiler(CubinCache(default_folder()))


@pytest.fixture(scope="session")
def cubins(compiler: Compiler) -> Mapping[tuple[Source, int], Cubin]:
    """Of every source and architecture."""
    return compiler.compile_all((s, arch) for s in all_sources() for arch in ARCHITECTURES)


@pytest.fixture(scope="session")
def sass() -> None:
    """For tests that read machine code."""
    if disassembler() is None:
        pytest.skip("nvidia-cuda-nvdisasm is not installed")


HOST = pytest.param(0, id="host")
MACHINES = [
    HOST,
    pytest.param(20, id="permuted"),
    pytest.param("cuda", id="cuda", marks=pytest.mark.gpu),
    pytest.param("early", id="early", marks=pytest.mark.gpu),
]


@pytest.fixture(params=[HOST] if sanitizer.is_wanted() else MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    """The CPU shim, threads in order or as a seed permutes them; a device (`-m gpu`), where each
    kernel begins when the one before has ended, or early."""
    on_device = isinstance(request.param, str)
    if problem := cuda_problem() if on_device else host_problem():
        pytest.skip(problem)
    return CudaMachine(request.param == "early") if on_device else HostMachine(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """While kernels are watched only tests that run some, threads in order."""
    if sanitizer.is_wanted():
        others = [item for item in items if not runs_kernels(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def runs_kernels(item: pytest.Item) -> bool:
    names = vars(getattr(item, "module", None) or object).values()
    uses_shim = any(str(getattr(name, "__module__", "")).startswith("shim.") for name in names)
    return uses_shim or "machine" in getattr(item, "fixturenames", ())
