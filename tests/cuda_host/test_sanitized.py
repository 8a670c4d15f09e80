"""Reads and writes beyond an array: AddressSanitizer sees them at the line of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from checked_sources import if_kernels_changed
from shim import sanitizer

if reason := sanitizer.unavailable_reason():
    pytest.skip(reason, allow_module_level=True)

CHILD = """
import sys
sys.path.insert(0, "tests/cuda_host")
import numpy as np
from shim.launcher import ShimError
from shim.machine import HostMachine
from nextn.cuda_kernels.kernel import Kernel, Source

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


@pytest.mark.parametrize("seed", [0, 3])
def test_one_element_too_far_is_seen(seed: int) -> None:
    source = Path(__file__).parent / "kernels" / "faults.cu"
    arguments = ["-c", CHILD, str(seed), str(source)]
    done = sanitizer.run(arguments, sanitizer.environment(), timeout=300)
    lines = done.stdout.splitlines()
    assert len(lines) == len(WANTED), done.stderr[-3000:]
    for line, wanted in zip(lines, WANTED, strict=True):
        assert wanted in line


@if_kernels_changed
@pytest.mark.slow
@pytest.mark.parametrize("part", range(sanitizer.N_PARTS))
def test_kernels_stay_within_their_arrays(part: int) -> None:
    """All tests that run kernels, once more."""
    done = sanitizer.run_tests(part, sanitizer.environment())
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
