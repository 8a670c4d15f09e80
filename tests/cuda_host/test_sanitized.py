"""Reads and writes beyond an array: AddressSanitizer sees them at the line of the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from shim import sanitizer

ROOT = Path(__file__).parents[2]

if reason := sanitizer.unavailable_reason():
    pytest.skip(reason, allow_module_level=True)

CHILD = """
import sys
sys.path.insert(0, "tests/cuda_host")
import numpy as np
from shim.launcher import ShimError
from shim.machine import HostMachine
from specdec.cuda_kernels.kernel import Kernel, Source

machine = HostMachine(seed=int(sys.argv[1]))
source = Source(sys.argv[2])
x, y = (machine.put(np.zeros(n, np.float32)) for n in (61, 64))

def attempt(name, threads, arguments, shared=0):
    kernel = Kernel(name, source, "", threads, 255, dynamic_shared=512)
    try:
        machine.launcher.launch(kernel, 3, arguments, shared=shared)
    except ShimError as error:
        print(" ".join(str(error).split()))
    else:
        print("fine")

for by in (0, 1, -1, 0):
    attempt("overruns", 64, [x, y, 61, by])
for by in (0, 1, -1, 0):
    attempt("overruns_shared", 64, [y, by])
for by in (0, 1, -1, 0):
    attempt("overruns_by_pointer", 64, [y, by])
for n in (32, 33):
    attempt("uses_dynamic", 32, [y, n], shared=128)
"""
WANTED = (
    "fine",
    "heap-buffer-overflow, READ of size 4 in overruns (faults.cu:",
    "heap-buffer-overflow, READ of size 4 in overruns (faults.cu:",
    "fine",
    "fine",
    "index 64 is not in the array",
    "index -1 is not in the array",
    "fine",
    "fine",
    "global-buffer-overflow, WRITE of size 4 in overruns_by_pointer (faults.cu:",
    "global-buffer-overflow, WRITE of size 4 in overruns_by_pointer (faults.cu:",
    "fine",
    "fine",
    "heap-buffer-overflow, WRITE of size 4 in uses_dynamic (faults.cu:",
)


def sanitized(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=sanitizer.environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("seed", [0, 3])
def test_one_element_too_far_is_seen(seed: int) -> None:
    source = Path(__file__).parent / "kernels" / "faults.cu"
    done = sanitized("-c", CHILD, str(seed), str(source), timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == len(WANTED), done.stderr[-3000:]
    for line, wanted in zip(lines, WANTED, strict=True):
        assert wanted in line


@pytest.mark.slow
def test_kernels_stay_within_their_arrays() -> None:
    """All tests of kernels, once more."""
    command = ("-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "tests/cuda_kernels")
    done = sanitized(*command, timeout=1500)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
