"""Arguments of a launch as the driver reads them: an array of addresses, one of each value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from struct import Struct

import numpy as np

from .image import Shape
from .kernel import Argument, Array, Kernel

_SLOT = 8  # bytes: each value begins at a multiple


class PackedArguments:
    """Memory for the arguments of one kernel, as long as they are of the same Python types.

    The types say how a value is stored, so they are compared with the machine code once; each
    launch then only fills in values.
    """

    def __init__(self, kernel: Kernel, shape: Shape, arguments: Sequence[Argument]) -> None:
        codes = [_code(argument) for argument in arguments]
        sizes = tuple(Struct(f"={code}").size for code in codes)
        if sizes != shape.parameters:
            raise ValueError(
                f"{kernel.name} takes {len(shape.parameters)} arguments of {shape.parameters} "
                f"bytes, got {len(sizes)} of {sizes}"
            )
        self._converted = [
            (place, convert)
            for place, argument in enumerate(arguments)
            if (convert := _conversion(argument)) is not None
        ]
        self._arrays = [i for i, code in enumerate(codes) if code == _POINTER]
        padded = [f"{code}{-size % _SLOT}x" for code, size in zip(codes, sizes, strict=True)]
        self._struct = Struct("=" + "".join(padded))
        self._values = ctypes.create_string_buffer(max(1, self._struct.size))
        starts = np.cumsum([0, *(size + -size % _SLOT for size in sizes)])[:-1]
        first = ctypes.addressof(self._values)
        self._addresses = (ctypes.c_uint64 * max(1, len(sizes)))(*(first + int(s) for s in starts))
        self.address = ctypes.addressof(self._addresses)

    def fill(self, arguments: Sequence[Argument], pointer: Callable[[Array], int]) -> None:
        """Arguments of the same types."""
        values = list(arguments)
        for place in self._arrays:
            values[place] = pointer(values[place])
        for place, convert in self._converted:
            values[place] = convert(values[place])
        self._struct.pack_into(self._values, 0, *values)


_POINTER = "Q"
_NULL = "q"
_CODES: dict[type, str] = {type(None): _NULL, bool: "i", int: "i", float: "f"}


def _code(argument: Argument) -> str:
    """How `struct` stores it. An array, of whatever library, is its address."""
    if isinstance(argument, np.generic):
        return f"{argument.itemsize}s"
    return _CODES.get(type(argument), _POINTER)


def _conversion(argument: Argument) -> Callable[[Argument], object] | None:
    if argument is None:
        return lambda _: 0
    if isinstance(argument, np.generic):
        return _bytes_of(argument.itemsize)
    return None


def _bytes_of(size: int) -> Callable[[Argument], bytes]:
    def convert(value: Argument) -> bytes:
        if value.itemsize != size:  # records of all sizes have one type
            raise ValueError(f"an argument of {value.itemsize} bytes, where {size} are expected")
        found: bytes = value.tobytes()
        return found

    return convert


def boxed(argument: Argument, pointer: Callable[[Array], int]) -> np.generic:
    """One argument as a value that knows its size."""
    if isinstance(argument, np.generic):
        return argument
    if isinstance(argument, (bool, int)):
        return np.int32(argument)
    if isinstance(argument, float):
        return np.float32(argument)
    return np.uint64(0 if argument is None else pointer(argument))
