"""The CPU shim notices what a kernel does wrong, and nothing where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shim.build import BuildError, unavailable_reason
from shim.launcher import HostLauncher, ShimError, aligned

from nextn.cuda_kernels.kernel import Kernel, Source

KERNELS = Path(__file__).parent / "kernels"
SEEDS = range(5)
F32 = np.float32
Array = np.ndarray[Any, Any]

if reason := unavailable_reason():
    pytest.skip(reason, allow_module_level=True)


def kernel(name: str, threads: int, plant: int = 0, dynamic: int = 0) -> Kernel:
    source = Source(str(KERNELS / "faults.cu"), (("PLANT", plant),))
    return Kernel(name, source, "", threads, 255, dynamic_shared=dynamic)


def numbers(n: int) -> Array:
    return np.random.default_rng(n).standard_normal(n).astype(F32)


# Races -------------------------------------------------------------------------------------------


def rotated(plant: int, seed: int) -> bool:
    x, y = numbers(128), np.zeros(128, F32)
    HostLauncher(seed).launch(kernel("block_rotate", 128, plant), 1, [x, y])
    return np.array_equal(y, np.roll(x, -1))


def relaxed(plant: int, seed: int) -> bool:
    x, y = numbers(128), np.zeros(128, F32)
    HostLauncher(seed).launch(kernel("block_relax", 128, plant), 1, [x, y, 6])
    wanted = x
    for _ in range(6):
        wanted = wanted + np.roll(wanted, -33)
    return np.array_equal(y, wanted)


def warp_rotated(plant: int, seed: int) -> bool:
    x, y = numbers(64), np.zeros(64, F32)
    HostLauncher(seed).launch(kernel("warp_rotate", 64, plant), 1, [x, y])
    return np.array_equal(y, np.roll(x.reshape(2, 32), 1, axis=1).ravel())


def staged(plant: int, seed: int) -> bool:
    x, y = aligned(5 * 128, F32), np.zeros(32, F32)
    x[:] = numbers(5 * 128)
    HostLauncher(seed).launch(kernel("stages", 32, plant), 1, [x, y, 5])
    own = np.zeros(32, F32)
    for column in x.reshape(5, 32, 4).transpose(0, 2, 1).reshape(-1, 32):
        own = own + column
    return np.array_equal(y, np.roll(own, -1))


def siblings(plant: int, seed: int) -> bool:
    x, factors, y = numbers(8), np.ones(64, F32), np.zeros((8, 32), F32)
    arguments = [x, factors, y, np.zeros(1, np.int32)]
    HostLauncher(seed).launch(kernel("siblings", 32, plant), 8, arguments)
    return bool((y == x[:, None]).all())


def arrived(plant: int, seed: int) -> bool:
    launcher, counter = HostLauncher(seed), np.zeros(1, np.uint32)
    x, partial, y = numbers(1000), np.full(9, np.nan, F32), np.full(1, np.nan, F32)
    for _ in range(3):  # the counter is as it was before, so that a launch can be repeated
        arguments = [x, partial, counter, y, 1000]
        launcher.launch(kernel("last_arriver", 64, plant), 9, arguments)
        if not np.isclose(y[0], x.sum(dtype=np.float64), atol=1e-4) or counter[0]:
            return False
        partial[:] = np.nan
        y[:] = np.nan
    return True


# (what, its fault, seeds that have to show it: the order of blocks needs one that permutes)
RACES = [
    pytest.param(rotated, 1, SEEDS, id="a missing barrier"),
    pytest.param(relaxed, 1, SEEDS, id="a missing second barrier"),
    pytest.param(warp_rotated, 1, SEEDS, id="a missing __syncwarp"),
    pytest.param(staged, 1, SEEDS, id="a missing cp_async_wait"),
    pytest.param(staged, 2, SEEDS, id="a missing barrier after cp_async_wait"),
    pytest.param(staged, 3, SEEDS, id="a missing barrier before a stage is filled again"),
    pytest.param(siblings, 1, SEEDS, id="factors overwritten before a sibling read them"),
    pytest.param(arrived, 1, SEEDS[1:], id="the last block taken for the last to arrive"),
]


@pytest.mark.parametrize(("right", "plant", "seeds"), RACES)
def test_a_race_shows_in_the_result(right: Any, plant: int, seeds: range) -> None:
    assert all(right(0, seed) for seed in range(12))
    assert not any(right(plant, seed) for seed in seeds)


# Meetings ----------------------------------------------------------------------------------------

MEETINGS = [
    (1, "divergent barrier|deadlock.*__syncthreads"),
    (2, r"deadlock.*waits in __syncthreads \(faults.cu:\d+\).*thread \(40, 0, 0\).*returned"),
    (3, r"divergent barrier: thread \(\d+, 0, 0\) of block .* is in __syncthreads"),
    (4, r"thread \(5, 0, 0\).*__syncwarp|__syncwarp.*lanes 0x00000020 of mask|divergent"),
    (5, "__shfl_sync.*its own lane is not in the mask"),
    (6, "(__shfl_xor_sync|__any_sync).*is in (__shfl_xor_sync|__any_sync)"),
    (7, "reads lane 20, which is not in the mask"),
    (8, r"thread \(3, 0, 0\).*returned"),
    (9, "waits in __syncwarp.*for lanes 0x0000ffff of mask 0xffffffff"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("fault", "message"), MEETINGS)
def test_a_wrong_meeting_is_named(fault: int, message: str, seed: int) -> None:
    with pytest.raises(ShimError, match=message):
        HostLauncher(seed).launch(kernel("barriers", 64), 1, [np.zeros(64, F32), fault])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_meeting_is_not(seed: int) -> None:
    y = np.zeros(64, F32)
    HostLauncher(seed).launch(kernel("barriers", 64), 3, [y, 0])
    assert (y == 1).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_wait_for_a_block_that_may_not_run_ends(seed: int) -> None:
    with pytest.raises(ShimError, match="a million atomic operations"):
        HostLauncher(seed, in_flight=1).launch(kernel("spin", 32), 9, [np.zeros(1, np.uint32)])


def test_a_wait_without_atomics_ends_as_well() -> None:
    flag = np.zeros(1, np.uint32)
    for _ in range(2):
        with pytest.raises(ShimError, match=r"thread \(0, 0, 0\).* running for too long"):
            HostLauncher(limit_s=0.2).launch(kernel("spin_quietly", 32), 2, [flag])
    HostLauncher(limit_s=0.2).launch(kernel("spin_quietly", 32), 2, [np.ones(1, np.uint32)])


# Memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_memory_is_garbage_in_every_block(seed: int) -> None:
    y = np.zeros(64, F32)
    for grid in (1, 6):
        HostLauncher(seed).launch(kernel("unwritten", 32, dynamic=256), grid, [y], shared=128)
        assert np.isnan(y).all()


def test_dynamic_shared_memory_must_be_asked_for() -> None:
    y = np.zeros(32, F32)
    uses = kernel("uses_dynamic", 32, dynamic=128)
    HostLauncher().launch(uses, 2, [y, 32], shared=128)
    assert (y == np.arange(32)).all()
    with pytest.raises(ShimError, match="asks for no dynamic shared memory"):
        HostLauncher().launch(uses, 2, [y, 32])
    with pytest.raises(ShimError, match="behind its dynamic shared memory"):
        HostLauncher().launch(uses, 2, [y, 33], shared=128)
    with pytest.raises(ValueError, match="256 bytes of dynamic shared memory"):
        HostLauncher().launch(uses, 2, [y, 33], shared=256)


UNDEFINED = [
    (1, "an address is not a multiple of 16"),
    (2, r"index \d+ is not in the array"),
    (3, r"index \d+ is not in the array"),
    (4, "a shift by 32 bits"),
    (5, "a division by zero"),
    (6, "access through a null pointer"),
]


@pytest.mark.parametrize(("fault", "message"), UNDEFINED)
def test_what_no_device_does_is_named(fault: int, message: str) -> None:
    x, y = aligned(36, F32), np.zeros(32, F32)
    HostLauncher().launch(kernel("undefined", 32), 2, [x, y, 0])
    with pytest.raises(
        ShimError, match=rf"thread \(\d+, 0, 0\).*undefined \(faults.cu:\d+\): {message}"
    ):
        HostLauncher().launch(kernel("undefined", 32), 2, [x, y, fault])


# Launches ----------------------------------------------------------------------------------------


def arguments(**changed: Any) -> list[Any]:
    given = {
        "f": np.ones(1, F32),
        "bytes": np.zeros(1, np.int8),
        "wide": aligned(4, np.uint32),
        "i": 1,
        "u": 2,
        "l": np.int64(3),
        "x": 4.0,
        "h": np.uint64(5),
    }
    return list((given | changed).values())


READ_ONLY = np.zeros(1, np.int8)
READ_ONLY.flags.writeable = False
WRONG = [
    ({"f": np.ones(1)}, "argument 0: the kernel takes an array of float32, not of float64"),
    ({"f": np.ones(1, np.int32)}, "argument 0.*float32, not of int32"),
    ({"f": np.ones((4, 4), F32)[:, 1]}, "not contiguous"),
    ({"f": 3}, "argument 0: the kernel takes an array"),
    ({"bytes": READ_ONLY}, "argument 1.*read-only"),
    ({"wide": aligned(5, np.uint32)[1:]}, "argument 2.*multiple of 16"),
    ({"i": 1.0}, "argument 3: the kernel takes int32, float32"),
    ({"i": np.int64(1)}, "argument 3: the kernel takes int32, int64"),
    ({"i": np.ones(1, F32)}, "argument 3: the kernel takes int32, an array"),
    ({"u": -1}, "argument 4: the kernel takes uint32, -1"),
    ({"l": 3}, "argument 5: the kernel takes int64, int32"),
    ({"x": 4}, "argument 6: the kernel takes float32, int32"),
    ({"h": np.ones(1, F32)}, "argument 7: the kernel takes uint64, an array"),
    ({"more": 1}, "takes 8 arguments, 9 were given"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG)
def test_wrong_arguments_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HostLauncher().launch(kernel("takes", 32), 1, arguments(**changed))


def test_right_arguments_are_taken() -> None:
    launcher, given = HostLauncher(), arguments()
    launcher.launch(kernel("takes", 32), 1, given)
    assert given[1][0] == 1
    launcher.launch(kernel("takes", 32), 1, arguments(f=None, bytes=given[1], wide=None))
    assert given[1][0] == 15
    launcher.launch(kernel("takes", 32), (2, 0), given)  # empty: not started
    assert [launch.name for launch in launcher.launches] == ["takes", "takes"]
    assert launcher.launches[0].grid == (1, 1, 1)
    with pytest.raises(TypeError, match="numpy arrays, not list"):
        launcher.launch(kernel("takes", 32), 1, arguments(f=[1.0]))


def test_wrong_sizes_are_refused() -> None:
    launcher, y = HostLauncher(), np.zeros(64, F32)
    with pytest.raises(ValueError, match="it declares 32 threads"):
        launcher.launch(kernel("never_waits", 32), 1, [y], block=64)
    with pytest.raises(ValueError, match=r"__launch_bounds__\(32\), declared 64"):
        launcher.launch(kernel("never_waits", 64), 1, [y])
    with pytest.raises(ValueError, match=r"grid \(1, 70000, 1\) is beyond"):
        launcher.launch(kernel("never_waits", 32), (1, 70000), [y])
    with pytest.raises(ValueError, match='no extern "C" kernel nobody'):
        launcher.launch(kernel("nobody", 32), 1, [y])
    with pytest.raises(ShimError, match=r"no thread called wait_for_previous\(\)"):
        launcher.launch(kernel("never_waits", 32), 1, [y])


def test_a_source_that_does_not_compile_says_why(tmp_path: Path) -> None:
    source = tmp_path / "broken.cu"
    source.write_text('#include "base.cuh"\nextern "C" __global__ void k(int n) { nothing(n); }\n')
    with pytest.raises(BuildError, match=r"broken\.cu:2:.*\n*.*nothing"):
        HostLauncher().launch(Kernel("k", Source(str(source)), "", 32, 255), 1, [1])
    source.write_text('#include "base.cuh"\n')
    with pytest.raises(BuildError, match='no extern "C" __global__ function'):
        HostLauncher().launch(Kernel("k", Source(str(source)), "", 32, 255), 1, [1])
