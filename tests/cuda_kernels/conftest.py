"""Machine code of all kernels, compiled once and kept between runs; what kernels run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from shim import sanitizer
from shim.machine import CudaMachine, HostMachine, Machine, cuda_problem, host_problem
from support.sass import disassembler

from specdec.cuda_kernels.cache import CubinCache, default_folder
from specdec.cuda_kernels.compile import ARCHITECTURES, Compiler, Cubin, nvrtc_problem
from specdec.cuda_kernels.kernel import Source
from specdec.cuda_kernels.registry import all_sources

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    if reason := nvrtc_problem():
        pytest.skip(reason)
    return Compiler(CubinCache(default_folder()))


Cubins = Mapping[tuple[Source, int], Cubin]


@pytest.fixture(scope="session", autouse=True)
def compiling(request: pytest.FixtureRequest) -> Iterator[Future[Cubins] | None]:
    """Compiles every source for every architecture beside the other tests, which come first.

    It takes minutes where nothing is in the cache, and most tests keep one processor busy.
    """
    if nvrtc_problem() or not any(map(wants_cubins, request.session.items)):
        yield None
        return
    pairs = [(source, arch) for source in all_sources() for arch in ARCHITECTURES]
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(Compiler(CubinCache(default_folder())).compile_all, pairs)


def wants_cubins(item: pytest.Item) -> bool:
    return "cubins" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def cubins(compiling: Future[Cubins] | None) -> Cubins:
    """Of every source and architecture."""
    if compiling is None:
        pytest.skip(nvrtc_problem() or "nothing was compiled")
    return compiling.result()


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
    last_those_who_wait(items)


def runs_kernels(item: pytest.Item) -> bool:
    names = vars(getattr(item, "module", None) or object).values()
    uses_shim = any(str(getattr(name, "__module__", "")).startswith("shim.") for name in names)
    return uses_shim or "machine" in getattr(item, "fixturenames", ())


def last_those_who_wait(items: list[pytest.Item]) -> None:
    """Those who want `cubins` behind the others of this folder."""
    here = [i for i, item in enumerate(items) if HERE in item.path.parents]
    waiting = sorted((items[i] for i in here), key=wants_cubins)
    for i, item in zip(here, waiting, strict=True):
        items[i] = item
