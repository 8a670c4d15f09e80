"""Machine code of all kernels, compiled once and kept between runs; what kernels run on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from checked_sources import if_kernels_changed
from shim import sanitizer
from shim.alone import alone
from shim.machine import CudaMachine, HostMachine, Machine, cuda_problem, host_problem
from support.sass import disassembler

from nextn.cuda_kernels.cache import CubinCache, default_folder
from nextn.cuda_kernels.compile import Compiler, Cubin, nvrtc_problem
from nextn.cuda_kernels.kernel import Source
from nextn.cuda_kernels.registry import all_sources

HERE = Path(__file__).parent


class SharedCompiler(Compiler):
    """Whatever several threads or processes want at the same time is compiled once."""

    def __init__(self) -> None:
        super().__init__(CubinCache(default_folder()))

    def compile(self, source: Source, arch: int) -> Cubin:
        with alone(f"{source} {arch}"):
            return super().compile(source, arch)


class Cubins(dict[tuple[Source, int], Cubin]):
    """What nobody announced is compiled when it is asked for."""

    def __missing__(self, pair: tuple[Source, int]) -> Cubin:
        return self.setdefault(pair, SharedCompiler().compile(*pair))


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    if reason := nvrtc_problem():
        pytest.skip(reason)
    return SharedCompiler()


Compiled = dict[tuple[Source, int], Cubin]


@pytest.fixture(scope="session", autouse=True)
def compiling(request: pytest.FixtureRequest) -> Iterator[Future[Compiled] | None]:
    """Compiles every source beside the other tests, which come first: for sm_90, and for each
    architecture that a test of this run names.

    It takes minutes where nothing is in the cache, and most tests keep one processor busy.
    """
    waiting = [item for item in request.session.items if wants_cubins(item)]
    if nvrtc_problem() or not waiting:
        yield None
        return
    archs = dict.fromkeys(map(architecture, waiting))
    pairs = [(source, arch) for arch in archs for source in all_sources()]
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(SharedCompiler().compile_all, pairs)


@pytest.fixture
def nothing_compiles(compiling: Future[Compiled] | None) -> None:
    """Waits for the compilation beside the tests: it reads the module that a test changes."""
    if compiling is not None:
        compiling.exception()


def wants_cubins(item: pytest.Item) -> bool:
    return "cubins" in getattr(item, "fixturenames", ())


def waits_for_the_compiler(item: pytest.Item) -> bool:
    return not {"cubins", "nothing_compiles"}.isdisjoint(getattr(item, "fixturenames", ()))


def architecture(item: pytest.Item) -> int:
    call = getattr(item, "callspec", None)
    arch: int = call.params.get("arch", 90) if call else 90
    return arch


@pytest.fixture(scope="session")
def cubins(compiling: Future[Compiled] | None) -> Cubins:
    """By source and architecture."""
    if compiling is None:
        pytest.skip(nvrtc_problem() or "nothing was compiled")
    return Cubins(compiling.result())


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


@pytest.hookimpl(tryfirst=True)  # before some are left out for their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """While kernels are watched only tests that run some, threads in order."""
    for item in filter(wants_cubins, items):
        item.add_marker(if_kernels_changed)
    if sanitizer.is_wanted():
        others = [item for item in items if not runs_kernels(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    last_those_who_wait(items)


def runs_kernels(item: pytest.Item) -> bool:
    if {"cubins", "compiler", "sass"} & {*getattr(item, "fixturenames", ())}:
        return False
    names = vars(getattr(item, "module", None) or object).values()
    uses_shim = any(str(getattr(name, "__module__", "")).startswith("shim.") for name in names)
    return uses_shim or "machine" in getattr(item, "fixturenames", ())


def last_those_who_wait(items: list[pytest.Item]) -> None:
    """Those who want `cubins` behind the others of this folder."""
    here = [i for i, item in enumerate(items) if HERE in item.path.parents]
    waiting = sorted((items[i] for i in here), key=waits_for_the_compiler)
    for i, item in zip(here, waiting, strict=True):
        items[i] = item
