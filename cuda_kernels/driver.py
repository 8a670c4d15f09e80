"""The few calls that need a device, behind an interface so that everything above is tested without.

Modules are loaded and kernels launched through CuPy, on torch's stream and with plain addresses.
CuPy's launch takes no attributes; programmatic launches go through cuda-bindings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from threading import local
from typing import Any

from .kernel import Dim


class Driver(ABC):
    """Of one device."""

    architecture: int
    n_processors: int
    shared_of_a_block: int  # bytes of shared memory that a block may have on request

    @abstractmethod
    def load(self, image: bytes) -> Any:
        """A module: its code is on the device for as long as the object lives."""

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
        from .device import architecture

        self._cupy = import_module("cupy")
        self._torch = import_module("torch")
        self._calls = self._cupy.cuda.driver
        self.index = index
        self.architecture = architecture(index)
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

    def function(self, module: Any, name: str) -> int:
        self._enter()
        return int(self._calls.moduleGetFunction(module.ptr, name))

    def allow_shared(self, function: int, size: int) -> None:
        self._enter()
        attribute = self._calls.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._calls.funcSetAttribute(function, attribute, size)

    def stream(self) -> int:
        return int(self._torch.cuda.current_stream(self.index).cuda_stream)

    def check(self, array: Any) -> int:
        if array.device.type == "cpu" and array.is_pinned() and array.is_contiguous():
            return int(array.data_ptr())  # the same address for host and device
        if array.device.type != "cuda" or array.device.index != self.index:
            raise ValueError(f"an array on {array.device}, for a kernel on cuda:{self.index}")
        if not array.is_contiguous():
            raise ValueError(f"an array {tuple(array.shape)} with strides {array.stride()}")
        return int(array.data_ptr())

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
        stream = self.stream()
        if early:
            start_early(function, grid, block, shared, stream, parameters)
        else:
            self._calls.launchKernel(function, *grid, *block, shared, stream, parameters, 0)

    def _enter(self) -> None:
        """Driver calls need a context, which a new thread does not have. torch uses the same."""
        if not getattr(self._thread, "entered", False):
            self._torch.cuda.set_device(self.index)
            self._cupy.cuda.Device(self.index).use()
            self._thread.entered = True


def start_early(
    function: int, grid: Dim, block: Dim, shared: int, stream: int, parameters: int
) -> None:
    """A programmatic launch: it waits for nothing before it on the stream but where it says so."""
    driver = import_module("cuda.bindings.driver")
    config = early_config(driver, grid, block, shared, stream)
    (status,) = driver.cuLaunchKernelEx(config, driver.CUfunction(function), parameters, 0)
    if int(status) != 0:
        raise RuntimeError(f"cuLaunchKernelEx: {status.name}")


def early_config(driver: Any, grid: Dim, block: Dim, shared: int, stream: int) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared
    config.hStream = driver.CUstream(stream)
    attribute = driver.CUlaunchAttribute()
    kinds = driver.CUlaunchAttributeID
    attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.attrs = [attribute]
    config.numAttrs = 1
    return config
