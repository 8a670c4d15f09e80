"""Launches kernels on the CPU, as a `Launcher`: arrays are numpy's, faults are exceptions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nextn.cuda_kernels.arguments import boxed
from nextn.cuda_kernels.kernel import Argument, Array, Dim, Kernel, Launcher

from . import build, sanitizer

ERROR_BYTES = 8192
MOST_SHARED = 232448  # bytes of a block, static and dynamic, on sm_90
GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
_one_at_a_time = threading.Lock()  # shared memory lies in a library's variables


class ShimError(Exception):
    """A kernel did something that no kernel may do."""


@dataclass(frozen=True, slots=True)
class Launch:
    name: str
    grid: Dim
    block: Dim
    shared: int


class Pointer(np.uint64):
    """Where an array lies, and the array."""

    array: np.ndarray[Any, Any]


class ArrayArgument(ctypes.Structure):
    """`shim::ArrayArgument`"""

    _fields_ = (
        ("at", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("argument", ctypes.c_uint32),
        ("was_written", ctypes.c_uint32),
    )


class Request(ctypes.Structure):
    """`shim::Request`"""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("in_flight", ctypes.c_uint64),
        ("limit_s", ctypes.c_double),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("error", ctypes.c_char_p),
        ("error_bytes", ctypes.c_uint64),
        ("arrays", ctypes.POINTER(ArrayArgument)),
        ("n_arrays", ctypes.c_uint64),
        ("waited", ctypes.c_uint64),
        ("switches", ctypes.c_uint64),
    )


@dataclass
class HostLauncher(Launcher):
    """Seed 0 runs blocks, warps and lanes in order. Every other seed permutes them, differently in
    each launch, with several blocks in flight. Mode `addresses` works in a
    process that was started with `sanitizer.environment()`."""

    seed: int = 0
    mode: build.Mode = field(default_factory=sanitizer.wanted)
    n_processors: int = 4
    in_flight: int = 0  # blocks at a time; 0: as the seed says
    limit_s: float = 180.0  # CPU time of a launch
    launches: list[Launch] = field(default_factory=list)
    _written: list[np.ndarray[Any, Any]] = field(default_factory=list, repr=False)

    def pointer(self, array: Array) -> int:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"the shim takes numpy arrays, not {type(array).__name__}")
        if not array.flags.c_contiguous:
            raise ValueError(f"an array of shape {array.shape} is not contiguous")
        return array.ctypes.data

    def start(
        self, kernel: Kernel, grid: Dim, block: Dim, arguments: Sequence[Argument], shared: int
    ) -> None:
        self._start(kernel, grid, block, [self._boxed(a) for a in arguments], shared)

    def _start(
        self, kernel: Kernel, grid: Dim, block: Dim, arguments: Sequence[np.generic], shared: int
    ) -> None:
        host = build.load(kernel.source, self.mode).get(kernel.name)
        if host is None:
            raise ValueError(f'{kernel.source.label} has no extern "C" kernel {kernel.name}')
        check_size(kernel, host, grid, block, shared)
        check_arguments(host, arguments)
        self.launches.append(Launch(kernel.name, grid, block, shared))
        request, error, kept = self._request(grid, block, arguments, shared)
        with _one_at_a_time:
            failed = host.run(ctypes.byref(request))
        del kept
        if self.mode == "races":
            self._note_written(host, arguments)
        if failed:
            said = sanitizer.shortened(error.value.decode(errors="replace"))
            said = sanitizer.with_lines(said, host.library)
            raise ShimError(f"{kernel.name}: {said}")
        if not request.waited:
            raise ShimError(f"{kernel.name}: no thread called wait_for_previous()")

    def _boxed(self, value: Argument) -> np.generic:
        if isinstance(value, np.ndarray):
            pointer = Pointer(self.pointer(value))
            pointer.array = value
            return pointer
        return boxed(value, self.pointer)

    def _request(
        self, grid: Dim, block: Dim, arguments: Sequence[np.generic], shared: int
    ) -> tuple[Request, ctypes.Array[ctypes.c_char], list[Any]]:
        boxes = [np.array(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * max(1, len(boxes)))(*(box.ctypes.data for box in boxes))
        arrays = self._arrays(arguments)
        error = ctypes.create_string_buffer(ERROR_BYTES)
        # A launch's own order, the same whenever the test runs.
        seed = self.seed and self.seed * 1_000_003 + len(self.launches)
        request = Request(
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            shared,
            seed,
            self.in_flight,
            self.limit_s,
            pointers,
            ctypes.cast(error, ctypes.c_char_p),
            ERROR_BYTES,
            arrays,
            len(arrays),
        )
        return request, error, [boxes, pointers, arrays]

    def _arrays(self, arguments: Sequence[np.generic]) -> ctypes.Array[ArrayArgument]:
        found = []
        for i, argument in enumerate(arguments):
            if isinstance(argument, Pointer):
                array = argument.array
                was_written = any(np.may_share_memory(array, other) for other in self._written)
                found.append(ArrayArgument(int(argument), array.nbytes, i, was_written))
        return (ArrayArgument * len(found))(*found)

    def _note_written(self, host: build.HostKernel, arguments: Sequence[np.generic]) -> None:
        """A later launch has to wait before it reads these."""
        for argument, parameter in zip(arguments, host.parameters, strict=True):
            if isinstance(argument, Pointer) and not parameter.is_constant:
                self._written.append(argument.array)


def aligned(shape: int | tuple[int, ...], dtype: Any, to: int = 256) -> np.ndarray[Any, Any]:
    """Zeros whose address is a multiple, as a device's allocator gives them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + to, np.uint8)
    start = -memory.ctypes.data % to
    result: np.ndarray[Any, Any] = memory[start : start + size].view(dtype).reshape(shape)
    return result


def check_size(kernel: Kernel, host: build.HostKernel, grid: Dim, block: Dim, shared: int) -> None:
    for name, size, limits in (("grid", grid, GRID_LIMITS), ("block", block, BLOCK_LIMITS)):
        if any(not 0 < n <= limit for n, limit in zip(size, limits, strict=True)):
            raise ValueError(f"{kernel.name}: {name} {size} is beyond {limits}")
    if kernel.shared + shared > MOST_SHARED:
        raise ValueError(f"{kernel.name}: more shared memory than a block can have")
    bounds = host.bounds.split(",")[0].strip()
    if bounds.isdigit() and int(bounds) != kernel.threads:
        raise ValueError(f"{kernel.name}: __launch_bounds__({bounds}), declared {kernel.threads}")


def check_arguments(host: build.HostKernel, arguments: Sequence[np.generic]) -> None:
    if len(arguments) != len(host.parameters):
        raise ValueError(
            f"{host.name} takes {len(host.parameters)} arguments, {len(arguments)} were given"
        )
    for i, (argument, parameter) in enumerate(zip(arguments, host.parameters, strict=True)):
        complaint = _complaint(argument, parameter)
        if complaint:
            raise ValueError(f"{host.name}, argument {i}: {complaint}")


def _complaint(argument: np.generic, parameter: build.Parameter) -> str | None:
    if isinstance(argument, Pointer):
        return _pointer_complaint(argument, parameter)
    if parameter.kind == b"p":
        return (
            None if argument.dtype == np.uint64 and argument == 0 else "the kernel takes an array"
        )
    kind = argument.dtype.kind
    if parameter.size != argument.dtype.itemsize or parameter.kind == b"v":
        return f"the kernel takes {_shown(parameter)}, {argument.dtype} was given"
    if (parameter.kind == b"f") != (kind == "f"):
        return f"the kernel takes {_shown(parameter)}, {argument.dtype} was given"
    if parameter.kind == b"u" and kind == "i" and int(argument) < 0:
        return f"the kernel takes {_shown(parameter)}, {argument} was given"
    return None


def _pointer_complaint(argument: Pointer, parameter: build.Parameter) -> str | None:
    array = argument.array
    if parameter.kind != b"p":
        return f"the kernel takes {_shown(parameter)}, an array was given"
    if not parameter.is_constant and not array.flags.writeable:
        return "the kernel may write to it, and the array is read-only"
    if array.size and int(argument) % parameter.alignment:
        return f"the array is not at a multiple of {parameter.alignment} bytes"
    if not _same_elements(array.dtype, parameter):
        return f"the kernel takes an array of {_shown(parameter, True)}, not of {array.dtype}"
    return None


def _same_elements(dtype: np.dtype[Any], parameter: build.Parameter) -> bool:
    """Integers may differ in sign, 16-bit words may be halves, wide or void elements are bytes."""
    if parameter.pointee == b"v":
        return True
    if parameter.size != dtype.itemsize:
        return False
    if parameter.pointee == b"f":
        return dtype.kind == "f"
    return dtype.kind in "iub" or (dtype.kind == "f" and parameter.size == 2)


def _shown(parameter: build.Parameter, pointee: bool = False) -> str:
    kind = (parameter.pointee if pointee else parameter.kind).decode()
    names = {"i": "int", "u": "uint", "f": "float", "b": "bool"}
    if kind in names:
        return f"{names[kind]}{8 * parameter.size}"
    return "a pointer" if kind == "p" else f"a structure of {parameter.size} bytes"
