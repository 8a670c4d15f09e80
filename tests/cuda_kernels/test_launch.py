"""Launching, up to the calls that need a device; those are made by a double that notes them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nextn.cuda_kernels.arguments import PackedArguments
from nextn.cuda_kernels.compile import Compiler
from nextn.cuda_kernels.driver import CudaDriver, Driver
from nextn.cuda_kernels.image import Shape, shapes
from nextn.cuda_kernels.kernel import Dim, Kernel, Source
from nextn.cuda_kernels.launch import DeviceLauncher

CODE = """
#include "base.cuh"
struct Two { float a, b; int c; };
extern "C" __global__ void __launch_bounds__(64)
fill(float* x, int n, float by, const float* none) {
    DYNAMIC_SHARED(float, scratch);
    scratch[threadIdx.x] = none ? by : 0.0f;
    if (threadIdx.x < n) x[threadIdx.x] = scratch[63 - threadIdx.x];
}
extern "C" __global__ void other(uint8_t flag, Two two, double* y) { y[0] = flag ? two.a : two.c; }
extern "C" __global__ void nothing() {}
"""


@dataclass
class Start:
    function: int
    grid: Dim
    block: Dim
    shared: int
    values: list[bytes]
    early: bool


@dataclass
class NotingDriver(Driver):
    """Reads arguments back as the driver does, from the address that it is given."""

    sizes: Sequence[int] = ()  # of the arguments of the next start
    architecture: int = 90
    n_processors: int = 132
    shared_of_a_block: int = 227 << 10
    version: int = 13000
    loaded: list[bytes] = field(default_factory=list)
    allowed: dict[int, int] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    raw_starts: list[tuple[Any, ...]] = field(default_factory=list)

    def load_raw(self, image: bytes) -> Any:
        return SimpleNamespace(names=list(shapes(image)))

    def raw_kernel(self, module: Any, name: str) -> Any:
        assert name in module.names
        return name

    def start_raw(
        self, kernel: Any, grid: Dim, block: Dim, shared: int, arguments: Sequence[np.generic]
    ) -> None:
        self.raw_starts.append((kernel, grid, block, shared, arguments))

    def load(self, image: bytes) -> Any:
        self.loaded.append(image)
        return SimpleNamespace(names=list(shapes(image)))

    def function(self, module: Any, name: str) -> int:
        return 1000 + int(module.names.index(name))

    def allow_shared(self, function: int, size: int) -> None:
        self.allowed[function] = size

    def stream(self) -> int:
        return 77

    def check(self, array: Any) -> int:
        return int(array.address)

    def start(
        self, function: int, grid: Dim, block: Dim, shared: int, parameters: int, *, early: bool
    ) -> None:
        addresses = (ctypes.c_void_p * len(self.sizes)).from_address(parameters)
        values = [
            ctypes.string_at(address or 0, size)
            for address, size in zip(addresses, self.sizes, strict=True)
        ]
        self.starts.append(Start(function, grid, block, shared, values, early))


@pytest.fixture
def fill(tmp_path: Path) -> Kernel:
    path = tmp_path / "fill.cu"
    path.write_text(CODE)
    return Kernel("fill", Source(str(path)), "nothing", 64, registers=32, dynamic_shared=100 << 10)


@pytest.fixture
def driver() -> NotingDriver:
    return NotingDriver(sizes=(8, 4, 4, 8))


@pytest.fixture
def launcher(driver: NotingDriver, compiler: Compiler) -> DeviceLauncher:
    return DeviceLauncher(driver=driver, compiler=compiler)


ARRAY = SimpleNamespace(address=0x123456789ABC, shape=(8,))


def test_arguments_arrive_as_they_were_given(
    fill: Kernel, driver: NotingDriver, launcher: DeviceLauncher
) -> None:
    launcher.launch(fill, (3, 2), [ARRAY, -5, 0.1, None], block=(16, 4), shared=4096)
    (start,) = driver.starts
    assert (start.grid, start.block, start.shared) == ((3, 2, 1), (16, 4, 1), 4096)
    assert not start.early
    pointer, n, by, none = start.values
    assert int.from_bytes(pointer, "little") == 0x123456789ABC
    assert int.from_bytes(n, "little", signed=True) == -5
    assert np.frombuffer(by, np.float32)[0] == np.float32(0.1)
    assert none == bytes(8)


def test_arguments_of_any_size_are_packed(fill: Kernel) -> None:
    record = np.dtype([("a", "f4"), ("b", "f4"), ("c", "i4")])
    two: np.void = np.array([(1.5, -2.5, 7)], record)[0]
    values: list[np.generic] = [
        np.uint8(200),
        two,
        np.uint64(2**63 + 1),
        np.float64(0.1),
        np.bool_(True),
    ]
    packed = PackedArguments(fill, Shape((1, 12, 8, 8, 1), None), values)
    addresses = (ctypes.c_uint64 * len(values)).from_address(packed.address)
    for given in (values, [np.uint8(3), two, np.uint64(5), np.float64(-1), np.bool_(False)]):
        packed.fill(given, lambda array: 0)
        assert all(address % 8 == 0 for address in addresses)
        read = [ctypes.string_at(a, v.itemsize) for a, v in zip(addresses, given, strict=True)]
        assert read == [value.tobytes() for value in given]
    other = np.array([(1.5, -2.5, 7, 8)], np.dtype([*record.descr, ("d", "i4")]))[0]
    with pytest.raises(ValueError, match="an argument of 16 bytes, where 12 are expected"):
        packed.fill([values[0], other, *values[2:]], lambda array: 0)
    empty = PackedArguments(fill, Shape((), None), [])
    empty.fill([], lambda array: 0)
    assert empty.address


def test_arguments_of_other_types_are_packed_anew(
    fill: Kernel, driver: NotingDriver, launcher: DeviceLauncher
) -> None:
    """An array may be left out in one launch and be there in the next."""
    for last in (None, ARRAY, None):
        launcher.launch(fill, 1, [ARRAY, np.uint32(9), 1, last] if last else [ARRAY, 9, 0.5, None])
    given = [[int.from_bytes(value, "little") for value in start.values] for start in driver.starts]
    half = int.from_bytes(np.float32(0.5).tobytes(), "little")
    there = 0x123456789ABC
    assert given == [[there, 9, half, 0], [there, 9, 1, there], [there, 9, half, 0]]


def test_a_source_is_loaded_once(
    fill: Kernel, driver: NotingDriver, launcher: DeviceLauncher
) -> None:
    driver.sizes = ()
    for _ in range(3):
        launcher.launch(replace(fill, name="nothing"), 1, [])
    driver.sizes = (8, 4, 4, 8)
    launcher.launch(fill, 1, [ARRAY, 1, 1.0, None])
    assert len(driver.loaded) == 1
    assert len(driver.starts) == 4


def test_warming_launches_nothing(
    fill: Kernel, driver: NotingDriver, launcher: DeviceLauncher
) -> None:
    seen: list[tuple[int, int]] = []
    launcher.warm([fill], lambda done, of: seen.append((done, of)))
    launcher.warm([fill], lambda done, of: seen.append((done, of)))
    assert seen == [(1, 1)]
    assert len(driver.loaded) == 1
    assert driver.starts == []


def test_much_shared_memory_is_asked_for_when_loading(
    fill: Kernel, driver: NotingDriver, launcher: DeviceLauncher
) -> None:
    launcher.warm([fill, replace(fill, name="nothing", dynamic_shared=48 << 10)])
    assert list(driver.allowed.values()) == [100 << 10]


def test_static_shared_memory_counts_as_well(
    fill: Kernel, driver: NotingDriver, launcher: DeviceLauncher
) -> None:
    """The driver refuses a launch whose static and dynamic shared memory pass 48 KB together."""
    launcher.warm([replace(fill, shared=20 << 10, dynamic_shared=40 << 10)])
    assert list(driver.allowed.values()) == [40 << 10]
    launcher.warm([replace(fill, name="other", shared=8 << 10, dynamic_shared=40 << 10)])
    assert len(driver.allowed) == 1


def test_more_shared_memory_than_there_is_is_refused(fill: Kernel) -> None:
    driver = NotingDriver()
    driver.shared_of_a_block = 99 << 10
    launcher = DeviceLauncher(driver=driver)
    assert launcher.shared_of_a_block == 99 << 10
    with pytest.raises(ValueError, match="fill may need 102400 bytes of shared memory"):
        launcher.warm([fill])


def test_more_than_declared_is_refused(fill: Kernel, launcher: DeviceLauncher) -> None:
    arguments = [ARRAY, 1, 1.0, None]
    with pytest.raises(ValueError, match="it declares 64 threads and 102400 bytes"):
        launcher.launch(fill, 1, arguments, shared=(100 << 10) + 1)
    with pytest.raises(ValueError, match=r"a block of \(65, 1, 1\)"):
        launcher.launch(fill, 1, arguments, block=65)


def test_wrong_arguments_are_refused(fill: Kernel, launcher: DeviceLauncher) -> None:
    for wrong in ([ARRAY, 1, 1.0], [ARRAY, 1, np.float64(1), None], [1, ARRAY, 1.0, None]):
        with pytest.raises(ValueError, match=r"fill takes 4 arguments of \(8, 4, 4, 8\) bytes"):
            launcher.launch(fill, 1, wrong)


def test_a_kernel_that_is_not_there_is_named(fill: Kernel, launcher: DeviceLauncher) -> None:
    with pytest.raises(ValueError, match=r"fill\.cu has no kernel flood"):
        launcher.warm([replace(fill, name="flood")])


def test_an_empty_grid_starts_nothing(
    fill: Kernel, driver: NotingDriver, launcher: DeviceLauncher
) -> None:
    launcher.launch(fill, 0, [ARRAY, 1, 1.0, None])
    assert driver.starts == []


@pytest.mark.parametrize(
    ("architecture", "version", "early"),
    [(80, 13000, False), (89, 13000, False), (90, 12020, False), (90, 12030, True)],
)
def test_kernels_start_early_where_device_and_driver_can(
    architecture: int, version: int, early: bool, fill: Kernel, compiler: Compiler
) -> None:
    driver = NotingDriver((8, 4, 4, 8), architecture, version=version)
    launcher = DeviceLauncher(driver=driver, compiler=compiler)
    arguments = [ARRAY, 1, 1.0, None]
    for copies in (True, False, False, True, False):
        if copies:
            launcher.begin_after_all()
        launcher.launch(fill, 1, arguments)
    assert [start.early for start in driver.starts] == [False, early, early, False, early]
    driver.starts.clear()
    launcher = DeviceLauncher(driver=driver, compiler=compiler, early=False)
    for _ in range(2):
        launcher.launch(fill, 1, arguments)
    assert not any(start.early for start in driver.starts)


def test_what_a_cubin_says_of_its_kernels(fill: Kernel, compiler: Compiler) -> None:
    for arch in (80, 90, 120):
        assert shapes(compiler.compile(fill.source, arch).image) == {
            "fill": Shape((8, 4, 4, 8), 64),
            "other": Shape((1, 12, 8), None),
            "nothing": Shape((), None),
        }
    with pytest.raises(ValueError, match="not a 64-bit ELF file"):
        shapes(b"what?")


def test_kernels_of_saved_state_are_cupys(
    fill: Kernel, driver: NotingDriver, launcher: DeviceLauncher
) -> None:
    saving = replace(fill, is_snapshot=True)
    launcher.launch(saving, (3, 2), [ARRAY, -5, 0.1, None], block=(16, 4), shared=4096)
    assert driver.starts == []
    (start,) = driver.raw_starts
    name, grid, block, shared, arguments = start
    assert (name, grid, block, shared) == ("fill", (3, 2, 1), (16, 4, 1), 4096)
    assert arguments == [0x123456789ABC, -5, np.float32(0.1), 0]
    assert [argument.itemsize for argument in arguments] == [8, 4, 4, 8]
    with pytest.raises(ValueError, match="fill takes 4 arguments"):
        launcher.launch(saving, 1, [ARRAY, -5])


class Tensor:
    def __init__(self, index: int, contiguous: bool = True, pinned: bool = False) -> None:
        self.index, self.contiguous, self.pinned = index, contiguous, pinned
        self.device = "cpu" if index < 0 else f"cuda:{index}"
        self.shape = (2, 3)

    def get_device(self) -> int:
        return self.index

    def is_contiguous(self) -> bool:
        return self.contiguous

    def is_pinned(self) -> bool:
        return self.pinned

    def stride(self) -> tuple[int, ...]:
        return 1, 2

    def data_ptr(self) -> int:
        return 4096


def test_arrays_are_checked() -> None:
    driver = object.__new__(CudaDriver)
    driver.index = 1
    assert driver.check(Tensor(1)) == 4096
    assert driver.check(Tensor(-1, pinned=True)) == 4096  # kernels can write there
    for index in (-1, 0):
        with pytest.raises(ValueError, match="for a kernel on cuda:1"):
            driver.check(Tensor(index))
    with pytest.raises(ValueError, match=r"an array \(2, 3\) with strides \(1, 2\)"):
        driver.check(Tensor(1, contiguous=False))


class FakeCupy:
    """CuPy's raw modules: a file is read when its first kernel is wanted, and a kernel is launched
    on the stream that is current."""

    def __init__(self) -> None:
        self.streams: list[int] = []
        self.launched: list[tuple[Any, ...]] = []
        self.cuda = SimpleNamespace(Stream=SimpleNamespace(from_external=self._stream))

    @contextmanager
    def _stream(self, of: Any) -> Iterator[None]:
        version, handle = of.__cuda_stream__()
        assert version == 0
        self.streams.append(handle)
        yield
        self.streams.pop()

    def RawModule(self, *, path: str) -> Any:  # noqa: N802 - CuPy's name
        def get_function(name: str) -> Callable[..., None]:
            image = Path(path).read_bytes()

            def launch(grid: Dim, block: Dim, args: tuple[Any, ...], *, shared_mem: int) -> None:
                found = (image, name, self.streams[-1], grid, block, args, shared_mem)
                self.launched.append(found)

            return launch

        return SimpleNamespace(get_function=get_function)


def test_raw_kernels_run_on_torchs_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy()
    driver: Any = object.__new__(CudaDriver)
    driver.index, driver._folder, driver._cupy = 0, None, cupy
    monkeypatch.setattr(driver, "_enter", lambda: None)
    stream = SimpleNamespace(__cuda_stream__=lambda: (0, 0x55))
    driver._torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda index: stream))
    modules = [driver.load_raw(image) for image in (b"first", b"second")]
    kernels = [driver.raw_kernel(module, "save") for module in modules]
    for kernel in kernels:
        driver.start_raw(kernel, (3, 2, 1), (64, 1, 1), 16, [np.uint64(7), np.int32(-1)])
    assert cupy.launched == [
        (image, "save", 0x55, (3, 2, 1), (64, 1, 1), (7, -1), 16) for image in (b"first", b"second")
    ]
