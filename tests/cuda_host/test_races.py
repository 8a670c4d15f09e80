"""Races are found from the accesses themselves, whatever order the threads ran in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_sources import if_kernels_changed
from shim import sanitizer
from shim.build import unavailable_reason
from shim.launcher import HostLauncher, ShimError, aligned

from nextn.cuda_kernels.kernel import Kernel, Source

if reason := unavailable_reason():
    pytest.skip(reason, allow_module_level=True)

SOURCE = Path(__file__).parent / "kernels" / "faults.cu"
F32 = np.float32
SEEDS = [0, 1, 2]


def launch(name: str, threads: int, grid: int, arguments: list[Any], plant: int, seed: int) -> None:
    source = Source(str(SOURCE), (("PLANT", plant),))
    arguments = [np.zeros(1, np.uint32) if a is None else a for a in arguments]  # a counter
    HostLauncher(seed, mode="races").launch(Kernel(name, source, "", threads, 255), grid, arguments)


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return aligned(shape, F32)


def cases() -> list[Any]:
    """(kernel, threads, blocks, arguments, fault, what is said)"""
    x, y, parity = zeros(640), zeros(640), np.zeros(1, np.int32)
    shared = r"race: it (reads|writes) a __shared__ variable at faults.cu:\d+; nothing orders that"
    factors = r"race: it (reads|writes) byte \d+ of argument 1 at faults.cu:\d+"
    partial = r"race: it (reads|writes) byte \d+ of argument 1 at faults.cu:\d+"
    return [
        ("block_rotate", 128, 1, [x, y], 1, shared),
        ("block_relax", 128, 1, [x, y, 4], 1, shared),
        ("warp_rotate", 64, 1, [x, y], 1, shared),
        ("stages", 32, 1, [x, y, 5], 2, shared),
        ("stages", 32, 1, [x, y, 5], 3, shared),
        ("siblings", 32, 4, [x, zeros(64), y, parity], 1, factors),
        ("last_arriver", 64, 5, [x, zeros(9), None, y, 640], 1, partial),
        ("last_arriver", 64, 5, [x, zeros(9), None, y, 640], 2, partial),
        ("last_arriver", 64, 5, [x, zeros(9), None, y, 640], 3, partial),
        ("all_fence", 64, 5, [x, zeros(320), None, y], 1, partial),
        ("exchange_by_shuffle", 32, 1, [x, y], 1, shared),
        ("too_early", 32, 1, [x, y], 1, r"it writes byte 0 of argument 1 at .* before wait_for_"),
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case[0]}-{case[4]}")
@pytest.mark.slow
def test_a_race_is_found(case: Any, seed: int) -> None:
    name, threads, grid, arguments, plant, message = case
    launch(name, threads, grid, arguments, 0, seed)
    with pytest.raises(ShimError, match=message):
        launch(name, threads, grid, arguments, plant, seed)


def test_what_a_launch_before_wrote_is_read_after_the_wait() -> None:
    launcher = HostLauncher(mode="races")
    hint, early = (
        Kernel("reads_early", Source(str(SOURCE), (("PLANT", plant),)), "", 32, 255)
        for plant in (0, 1)
    )
    x, y = zeros(32), zeros(32)
    launcher.launch(early, 1, [x, y])
    launcher.launch(early, 1, [x, y])
    launcher.launch(hint, 1, [y, x])
    with pytest.raises(ShimError, match=r"it reads byte 0 of argument 0 at .* before wait_for_"):
        launcher.launch(early, 1, [y, x])


@if_kernels_changed
@pytest.mark.slow
@pytest.mark.parametrize("part", range(sanitizer.N_PARTS))
def test_kernels_have_no_races(part: int) -> None:
    """All tests that run kernels, once more."""
    done = sanitizer.run_tests(part, {**os.environ, sanitizer.MODE: "races"})
    assert done.returncode == 0, done.stdout[-8000:]
