"""Calls of the driver, our own and the real CuPy's, into a libcuda of our own that notes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nextn.cuda_kernels.compile import nvrtc_problem

FAKE = Path(__file__).parent / "fake_driver.c"
BEGIN = """
import ctypes
import numpy as np
from nextn.cuda_kernels.arguments import PackedArguments
from nextn.cuda_kernels.device import driver_version
from nextn.cuda_kernels.driver import CudaDriver, Launch
from nextn.cuda_kernels.driver_library import driver_library
from nextn.cuda_kernels.image import Shape

fake = ctypes.CDLL("libcuda.so.1")
fake.last_note.restype = ctypes.c_char_p
packed = PackedArguments(None, Shape((8, 4), None), [np.uint64(0x123456789ABC), -7])
packed.fill([np.uint64(0x123456789ABC), -7], None)
"""
LAUNCHES = """
assert driver_version() == 13000
launch = Launch(driver_library())
for early in (True, False):
    launch(0x7777, (3, 2, 1), (64, 4, 1), 4096, 0x55, packed.address, early)
    print(fake.last_note().decode())
try:
    launch(0x7777, (666, 1, 1), (64, 1, 1), 0, 0x55, packed.address, True)
except RuntimeError as error:
    print(error)
"""
LOADING = """
import cupy
driver = object.__new__(CudaDriver)
driver._calls = cupy.cuda.driver
driver._enter = lambda: None
class Module: ptr = 0x1111
print(driver.function(Module, "some_kernel"), fake.last_note().decode())
driver.allow_shared(0x2222, 100000)
print(fake.last_note().decode())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    if reason := nvrtc_problem():
        pytest.skip(reason)
    made = tmp_path_factory.mktemp("driver")
    command = [compiler, "-w", "-shared", "-fPIC", str(FAKE), "-o", str(made / "libcuda.so.1")]
    subprocess.run([*command, "-ldl"], check=True)
    return made


def said(program: str, folder: Path) -> list[str]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_launches(folder: Path) -> None:
    # 6: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    early, plain, error = said(LAUNCHES, folder)
    assert early == "ex[1: 6=1] 0x7777 3,2,1 64,4,1 4096 0x55 123456789abc -7"
    assert plain == "ex[0] 0x7777 3,2,1 64,4,1 4096 0x55 123456789abc -7"
    assert error == "cuLaunchKernelEx: CUDA_ERROR_PLANTED"


@pytest.mark.skipif(find_spec("cupy") is None, reason="cupy-cuda13x is not installed")
def test_loading_through_cupy(folder: Path) -> None:
    assert said(LOADING, folder) == [
        "8738 attribute 0x2222 9=100",  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        "attribute 0x2222 8=100000",  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ]
