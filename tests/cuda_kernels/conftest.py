"""Machine code of all kernels, compiled once for all tests and kept between runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
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
