"""Tensor records: parsed, checked with Python integers, and bound to their bytes."""

from __future__ import annotations

import math
import mmap

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .cursor import Cursor
from .printable import printable
from .quants import FORMATS, REMOVED, BlockFormat, dequantize

MAX_DIMS = 4
MAX_NAME_BYTES = 63
MAX_BYTES = 2**62


class TensorInfo(Struct, frozen=True):
    """What a file says about a tensor; `offset` counts from the start of its data section."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    offset: int

    @property
    def n_bytes(self) -> int:
        return self.format.n_bytes(math.prod(self.shape))


class Tensor(Struct, frozen=True):
    name: str
    shape: tuple[int, ...]  # numpy order, outermost first: the reverse of ggml's `ne`
    format: BlockFormat
    data: NDArray[np.uint8]  # flat, read-only, over the mapped file

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return self.data.size

    def floats(self) -> NDArray[np.float32]:
        """Dequantised into a fresh array of `shape`, which the caller owns."""
        return dequantize(self.data, self.format, self.shape)

    def release(self) -> None:
        """Let the system take back the pages that were read; reading again brings them back."""
        mapped = self.data.base
        while isinstance(mapped, np.ndarray | memoryview):
            whole, mapped = mapped, mapped.obj if isinstance(mapped, memoryview) else mapped.base
        if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = self.data.ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # a page may be a neighbour's as well
        last = (start + self.n_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def read_tensor_info(cursor: Cursor, number: int) -> TensorInfo:
    name = cursor.text(f"name of tensor {number}", MAX_NAME_BYTES)
    if not name.isprintable():
        raise cursor.error(f"name of tensor {number} has control characters: {printable(name)}")
    what = f"tensor {printable(name)}"
    n_dims = cursor.u32(f"number of dimensions of {what}")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.error(f"{what} has {n_dims} dimensions, expected 1 to {MAX_DIMS}")
    shape = tuple(cursor.u64(f"dimension of {what}") for _ in range(n_dims))[::-1]
    fmt = _find_format(cursor, what, cursor.u32(f"type of {what}"))
    _check_shape(cursor, what, shape, fmt)
    return TensorInfo(name, shape, fmt, cursor.u64(f"offset of {what}"))


def _find_format(cursor: Cursor, what: str, type_id: int) -> BlockFormat:
    fmt = FORMATS.get(type_id)
    if fmt is None and type_id in REMOVED:
        old = REMOVED[type_id]
        raise cursor.error(f"{what} has type {old}, which GGUF dropped; quantise the model again")
    if fmt is None:
        raise cursor.error(f"{what} has type {type_id}, which is not known")
    return fmt


def _check_shape(cursor: Cursor, what: str, shape: tuple[int, ...], fmt: BlockFormat) -> None:
    """Products of any dimensions are exact here, so nothing can wrap around."""
    if max(shape) >= 2**63:  # two's complement, as every other reader takes it
        raise cursor.error(f"{what} has a negative dimension in {shape}")
    # Empty dimensions count as one: numpy refuses [2**62, 0] although it has no elements.
    if math.prod(max(n, 1) for n in shape) * max(fmt.block_bytes, 4) > MAX_BYTES:
        raise cursor.error(f"{what} of shape {shape} is too large for any file")
    if shape[-1] % fmt.block_size:
        raise cursor.error(
            f"{what} has rows of {shape[-1]} elements, not a multiple of the "
            f"{fmt.block_size} in a {fmt.name} block"
        )


def check_layout(infos: list[TensorInfo], alignment: int, data_start: int, cursor: Cursor) -> None:
    """Offsets must follow one another without gap or overlap, and end inside the file."""
    expected = 0
    for info in infos:
        what = f"tensor {printable(info.name)}"
        if info.offset != expected:
            raise cursor.error(f"{what} is at offset {info.offset}, expected {expected}")
        end = data_start + info.offset + info.n_bytes
        if end > cursor.end:
            raise cursor.error(
                f"{what} ends at byte {end}, but the file has {cursor.end}: it is incomplete"
            )
        expected = align(info.offset + info.n_bytes, alignment)


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """ne{E} and ne{E, 1} mean the same."""
    return tuple(n for n in shape if n != 1)


def align(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment
