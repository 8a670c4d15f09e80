"""safetensors files: eight bytes of length, a JSON header, tensors. All of it is checked.

Own reader, because one header parser then serves files, shards and byte ranges of a repository,
and numpy has no bfloat16 or float8 of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.errors import FileFormatError
from ...core.gguf.printable import printable
from .byte_source import ByteSource

MAX_HEADER_BYTES: Final = 100_000_000  # what the format's own library allows
MAX_DIMS: Final = 8

_DTYPES: Final = MappingProxyType(
    {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
        "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
        "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1",
        "U64": "<u8", "U32": "<u4", "U16": "<u2",
    }
)  # fmt: skip

Array = NDArray[Any]
Floats = NDArray[np.float32]


class StoredTensor(Struct, frozen=True):
    """A tensor where it lies; its numbers are read on demand."""

    name: str
    dtype: str  # the format's word
    shape: tuple[int, ...]
    start: int  # in the file
    source: ByteSource

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(_DTYPES[self.dtype]).itemsize

    def raw(self, first: int = 0, last: int | None = None) -> Array:
        """Rows first..last of the outermost axis as they are stored (BF16 as bits)."""
        if not self.shape:
            data = self.source.read(self.start, self.start + self.n_bytes)
            return np.frombuffer(data, _DTYPES[self.dtype]).reshape(())
        last = self.shape[0] if last is None else last
        row = self.n_bytes // max(1, self.shape[0])
        data = self.source.read(self.start + first * row, self.start + last * row)
        return np.frombuffer(data, _DTYPES[self.dtype]).reshape(last - first, *self.shape[1:])

    def floats(self, first: int = 0, last: int | None = None) -> Floats:
        """The same rows as float32, which all of these dtypes but F64 fit into exactly."""
        return to_floats(self.raw(first, last), self.dtype)

    def slabs(self, max_bytes: int = 1 << 26) -> Iterator[tuple[int, int]]:
        """Ranges of rows of about that many bytes as float32."""
        if not self.shape:
            yield 0, 1
            return
        row = max(1, 4 * math.prod(self.shape[1:]))
        step = max(1, max_bytes // row)
        for first in range(0, self.shape[0], step):
            yield first, min(first + step, self.shape[0])


def to_floats(raw: Array, dtype: str) -> Floats:
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype in _FLOAT8:
        return _FLOAT8[dtype][raw]
    with np.errstate(over="ignore", invalid="ignore"):  # F64: infinity says it well enough
        return raw.astype(np.float32)


def _float8(exponent_bits: int, bias: int, *, has_infinity: bool) -> Floats:
    """All 256 values of a float8 format."""
    codes = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    sign = np.where(codes & 128, -1.0, 1.0)
    exponent = (codes & 127) >> mantissa_bits
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1 + mantissa) * 2.0 ** (exponent - bias)
    values = sign * np.where(exponent, normal, mantissa * 2.0 ** (1 - bias))
    if has_infinity:
        top = exponent == (1 << exponent_bits) - 1
        values = np.where(top, np.where(mantissa, np.nan, sign * np.inf), values)
    else:
        values = np.where(codes & 127 == 127, np.nan, values)
    return values.astype(np.float32)


def _powers() -> Floats:
    """E8M0: a bare exponent. 255 is NaN; 2^-127 is a subnormal float32."""
    values = 2.0 ** (np.arange(256.0) - 127)
    values[255] = np.nan
    return values.astype(np.float32)


_FLOAT8: Final = MappingProxyType(
    {
        "F8_E4M3": _float8(4, 7, has_infinity=False),
        "F8_E5M2": _float8(5, 15, has_infinity=True),
        "F8_E8M0": _powers(),
    }
)


def read_tensors(source: ByteSource) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Every tensor of a file by name, and the strings of its `__metadata__`."""
    header, start = _read_header(source)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _damaged(source, "__metadata__ is not an object")
    tensors = {name: _tensor(name, entry, start, source) for name, entry in header.items()}
    _check_places(list(tensors.values()), start, source)
    return tensors, {str(key): str(value) for key, value in metadata.items()}


def _read_header(source: ByteSource) -> tuple[dict[str, Any], int]:
    if source.size < 8:
        raise _damaged(source, f"it has {source.size} bytes")
    length = int.from_bytes(source.read(0, 8), "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, source.size - 8):
        raise _damaged(source, f"its header claims {length} of {source.size} bytes")
    try:
        header = json.loads(bytes(source.read(8, 8 + length)), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(source, f"its header is not JSON ({str(error)[:80]})") from None
    if not isinstance(header, dict):
        raise _damaged(source, "its header is not an object")
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _tensor(name: str, entry: Any, start: int, source: ByteSource) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [first, last]}:
            pass
        case _:
            raise _damaged(source, f"tensor {printable(name)} has no dtype, shape and data_offsets")
    if dtype not in _DTYPES:
        raise _damaged(source, f"tensor {printable(name)} has the unknown dtype {printable(dtype)}")
    numbers = [*shape, first, last]
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers) or len(shape) > MAX_DIMS:
        raise _damaged(source, f"tensor {printable(name)} has an impossible shape or place")
    tensor = StoredTensor(name, dtype, tuple(shape), start + first, source)
    if last - first != tensor.n_bytes or start + last > source.size:
        raise _damaged(
            source,
            f"tensor {printable(name)} of {tensor.n_bytes} bytes does not fit at {first}..{last}",
        )
    return tensor


def _check_places(tensors: list[StoredTensor], start: int, source: ByteSource) -> None:
    """One after the other, as the format demands: no two share bytes, and nothing hides."""
    for tensor in sorted((t for t in tensors if t.n_bytes), key=lambda t: t.start):
        if tensor.start != start:
            raise _damaged(
                source, f"tensor {printable(tensor.name)} overlaps another or leaves a gap"
            )
        start += tensor.n_bytes
    if start != source.size:
        raise _damaged(source, f"{source.size - start} bytes at its end belong to no tensor")


def _damaged(source: ByteSource, what: str) -> FileFormatError:
    return FileFormatError(f"{source.label} is not a sound safetensors file: {what}")
