"""The few calls that need a device, behind an interface so that everything above is tested without.

Kernels run on torch's stream. Those that move saved state are CuPy's raw kernels. All others are
loaded through CuPy, too, and launched by the driver's own function: CuPy's launch takes no
attributes, and cuda-bindings builds its objects anew each time.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import local
from typing import Any

import numpy as np

from .driver_library import driver_library
from .kernel import Dim


class Driver(ABC):
    """Of one device."""

    architecture: int
    version: int  # of CUDA, as the driver counts: 12040 is 12.4
    n_processors: int
    shared_of_a_block: int  # bytes of shared memory that a block may have on request

    @abstractmethod
    def load(self, image: bytes) -> Any:
        """A module: its code is on the device for as long as the object lives."""

    @abstractmethod
    def load_raw(self, image: bytes) -> Any:
        """A module of CuPy's, `RawModule`."""

    @abstractmethod
    def raw_kernel(self, module: Any, name: str) -> Any:
        """A kernel of such a module."""

    @abstractmethod
    def start_raw(
        self, kernel: Any, grid: Dim, block: Dim, shared: int, arguments: Sequence[np.generic]
    ) -> None:
        """Launch it on torch's stream."""

    @abstractmethod
    def function(self, module: Any, name: str) -> int:
        """The handle of a kernel."""

    @abstractmethod
    def allow_shared(self, function: int, size: int) -> None:
        """Allow launches so many bytes of dynamic shared memory."""

    @abstractmethod
    def stream(self) -> int:
        """The handle of the stream that torch uses now."""

    @abstractmethod
    def check(self, array: Any) -> int:
        """Where an array lies. ValueError if not all of it lies there, or neither on this device
        nor in pinned memory of the host."""

    @abstractmethod
    def start(
        self,
        function: int,
        grid: Dim,
        block: Dim,
        shared: int,
        parameters: int,
        *,
        early: bool,
    ) -> None:
        """`parameters`: the address of an array of addresses, which is read before this returns.

        `early`: blocks may start while the kernel before still runs; they wait for its results
        themselves (`wait_for_previous`).
        """


class CudaDriver(Driver):
    def __init__(self, index: int = 0) -> None:
        from .device import architecture, driver_version

        self._cupy = import_module("cupy")
        self._torch = import_module("torch")
        self._calls = self._cupy.cuda.driver
        self._folder: TemporaryDirectory[str] | None = None
        self._launch = Launch(driver_library())
        self.index = index
        self.architecture, self.version = architecture(index), driver_version()
        self._thread = local()
        self._enter()
        runtime = self._cupy.cuda.runtime
        count, size = (
            runtime.deviceGetAttribute(which, index)
            for which in (
                runtime.cudaDevAttrMultiProcessorCount,
                runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin,
            )
        )
        self.n_processors, self.shared_of_a_block = int(count), int(size)

    def load(self, image: bytes) -> Any:
        self._enter()
        module = self._cupy.cuda.function.Module()
        module.load(image)
        return module

    def load_raw(self, image: bytes) -> Any:
        self._enter()
        # `RawModule` reads a file, perhaps not before its first kernel is wanted.
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="nextn-cubins-")
        path = Path(self._folder.name) / f"{hashlib.sha256(image).hexdigest()[:16]}.cubin"
        path.write_bytes(image)
        return self._cupy.RawModule(path=str(path))

    def raw_kernel(self, module: Any, name: str) -> Any:
        self._enter()
        return module.get_function(name)

    def start_raw(
        self, kernel: Any, grid: Dim, block: Dim, shared: int, arguments: Sequence[np.generic]
    ) -> None:
        self._enter()
        current = self._torch.cuda.current_stream(self.index)
        with self._cupy.cuda.Stream.from_external(current):
            kernel(grid, block, tuple(arguments), shared_mem=shared)

    def function(self, module: Any, name: str) -> int:
        self._enter()
        found = int(self._calls.moduleGetFunction(module.ptr, name))
        # As much shared memory as there is, for all alike: a processor that changes its share
        # between two kernels has to be empty first.
        carveout = self._calls.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        self._calls.funcSetAttribute(found, carveout, 100)
        return found

    def allow_shared(self, function: int, size: int) -> None:
        self._enter()
        attribute = self._calls.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._calls.funcSetAttribute(function, attribute, size)

    def stream(self) -> int:
        # As torch's own compiler does: `current_stream` makes an object first.
        return int(self._torch._C._cuda_getCurrentRawStream(self.index))

    def check(self, array: Any) -> int:
        # `get_device` is -1 for the host, whose pinned memory has one address everywhere.
        where = array.get_device()
        if where != self.index and (where >= 0 or not array.is_pinned()):
            raise ValueError(f"an array on {array.device}, for a kernel on cuda:{self.index}")
        if not array.is_contiguous():
            raise ValueError(f"an array {tuple(array.shape)} with strides {array.stride()}")
        found: int = array.data_ptr()
        return found

    def start(
        self,
        function: int,
        grid: Dim,
        block: Dim,
        shared: int,
        parameters: int,
        *,
        early: bool,
    ) -> None:
        self._enter()
        self._launch(function, grid, block, shared, self.stream(), parameters, early)

    def _enter(self) -> None:
        """Driver calls need a context, which a new thread does not have. torch uses the same."""
        if not getattr(self._thread, "entered", False):
            self._torch.cuda.set_device(self.index)
            self._cupy.cuda.Device(self.index).use()
            self._thread.entered = True


class Launch:
    """`cuLaunchKernelEx` of the driver's library: one call with memory that is laid out once."""

    # CUlaunchConfig: grid, block, bytes of shared memory, stream, attributes, their number.
    _CONFIG = struct.Struct("3I3II4xQQI4x")
    # CUlaunchAttribute: its id, and a value of 64 bytes.
    _ATTRIBUTE = struct.Struct("I4xi60x")
    _STARTS_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

    def __init__(self, library: Any) -> None:
        self._call = library.cuLaunchKernelEx
        self._call.argtypes = [ctypes.c_void_p] * 4
        self._call.restype = ctypes.c_int
        self._name_of = library.cuGetErrorName
        self._name_of.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        self._config = ctypes.create_string_buffer(self._CONFIG.size)
        self._attribute = ctypes.create_string_buffer(self._ATTRIBUTE.size)
        self._ATTRIBUTE.pack_into(self._attribute, 0, self._STARTS_EARLY, 1)
        self._places = ctypes.addressof(self._config), ctypes.addressof(self._attribute)

    def __call__(
        self,
        function: int,
        grid: Dim,
        block: Dim,
        shared: int,
        stream: int,
        parameters: int,
        early: bool,
    ) -> None:
        """`early`: it waits for nothing before it on the stream but where it says so."""
        config, attribute = self._places
        self._CONFIG.pack_into(
            self._config, 0, *grid, *block, shared, stream, attribute, int(early)
        )
        status = self._call(config, function, parameters, None)
        if status:
            name = ctypes.c_char_p()
            self._name_of(status, ctypes.byref(name))
            raise RuntimeError(f"cuLaunchKernelEx: {(name.value or b'?').decode()}")
