"""One tensor, slab by slab: stored bytes to float32 to stored bytes. No more than a few slabs are
in memory at any time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from ...core.gguf.quants import dequantize
from ...core.gguf.tensors import Tensor
from .encode import narrowed
from .native import VECTOR, WIDENERS, WRITERS, Native
from .plan import Item

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

SLAB_ELEMENTS = 1 << 18  # 1 MB as float32: its work stays in the second level of the cache
LARGEST_HALF = 65504.0
# Where a value itself is stored as a half float, or a scale that is no smaller than some value.
HALVES = frozenset(WRITERS) - {"MXFP4"} | {"F16"}
_RELEASE_BYTES = 1 << 26


@dataclass(slots=True)
class Errors:
    """What was lost, of one type or of all."""

    squares: float = 0.0  # of the differences
    total: float = 0.0  # of the values
    n: int = 0

    def add(self, other: Errors) -> None:
        self.squares += other.squares
        self.total += other.total
        self.n += other.n

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.n) if self.n else 0.0

    @property
    def relative(self) -> float:
        return math.sqrt(self.squares / self.total) if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Slab:
    """Whole rows of one matrix."""

    first: int  # element of the tensor
    n_rows: int
    matrix: int  # which of the experts


@dataclass(slots=True)
class Converter:
    """Converts items on some threads."""

    native: Native
    pool: ThreadPoolExecutor
    n_threads: int
    measures: bool = False
    errors: dict[str, Errors] = field(default_factory=dict)  # by type

    def pieces(self, item: Item, importance: Floats | None) -> Iterator[Bytes]:
        """The tensor's new bytes, in order."""
        waiting: deque[Future[tuple[Bytes, Errors | None]]] = deque()
        slabs = slabs_of(item.tensor)
        released = 0
        try:
            for number, slab in enumerate(slabs):
                waiting.append(self.pool.submit(self._convert, item, slab, importance))
                if len(waiting) > 2 * self.n_threads:
                    yield self._take(waiting, item)
                    released = _release(item.tensor, slabs, number - len(waiting), released)
            while waiting:
                yield self._take(waiting, item)
        finally:
            for future in waiting:
                future.cancel()
        item.tensor.release()

    def _take(self, waiting: deque[Future[tuple[Bytes, Errors | None]]], item: Item) -> Bytes:
        piece, errors = waiting.popleft().result()
        if errors is not None:
            self.errors.setdefault(item.format.name, Errors()).add(errors)
        return piece

    def _convert(
        self, item: Item, slab: Slab, importance: Floats | None
    ) -> tuple[Bytes, Errors | None]:
        tensor, row = item.tensor, item.tensor.shape[-1]
        n = slab.n_rows * row
        values = self._floats(item, slab.first, n).reshape(slab.n_rows, row)
        if item.format.name in WRITERS:
            piece = np.empty(item.format.n_bytes(n), np.uint8)
            columns = None if importance is None else importance[slab.matrix]
            self.native.quantize(item.format, values, columns, piece)
        else:
            piece = narrowed(values, item.format)
        if not self.measures:
            return piece, None
        return piece, _measured(values, dequantize(piece, item.format, values.shape), tensor)

    def _floats(self, item: Item, first: int, n: int) -> Floats:
        tensor = item.tensor
        stored = _bytes_of(tensor, first, n)
        if tensor.format.name in WIDENERS and n % VECTOR == 0:
            values = np.empty(n, np.float32)
            largest = self.native.widen(tensor.format.name, stored, values)
        else:
            values = dequantize(stored, tensor.format, (n,))
            largest = float(np.abs(values).max(initial=0.0))
        most = LARGEST_HALF if item.format.name in HALVES else np.finfo(np.float32).max
        if not largest <= most:
            raise ModelError(_complaint(item, values, first))
        return values


def slabs_of(tensor: Tensor) -> list[Slab]:
    """In order; experts apart, because each has its own importance."""
    row = tensor.shape[-1]
    n_rows = tensor.shape[-2] if len(tensor.shape) > 1 else 1
    n_matrices = math.prod(tensor.shape[:-2])
    step = max(1, SLAB_ELEMENTS // max(1, row))
    return [
        Slab((matrix * n_rows + start) * row, min(step, n_rows - start), matrix)
        for matrix in range(n_matrices)
        for start in range(0, n_rows, step)
    ]


def _bytes_of(tensor: Tensor, first: int, n: int) -> Bytes:
    start, length = tensor.format.n_bytes(first), tensor.format.n_bytes(n)
    return tensor.data[start : start + length]


def _release(tensor: Tensor, slabs: list[Slab], done: int, released: int) -> int:
    """Give back what was read of a large tensor; returns up to which byte."""
    if done < 0:
        return released
    end = tensor.format.n_bytes(slabs[done].first)
    if end - released < _RELEASE_BYTES:
        return released
    part = tensor.data[released:end]
    Tensor(tensor.name, (part.size,), tensor.format, part).release()
    return end


def _measured(values: Floats, kept: Floats, tensor: Tensor) -> Errors:
    wide = values.astype(np.float64).ravel()
    left = kept.astype(np.float64).ravel() - wide
    return Errors(float(left @ left), float(wide @ wide), wide.size)


def _complaint(item: Item, values: Floats, first: int) -> str:
    """Which element it is, and what to do."""
    tensor = item.tensor
    with np.errstate(invalid="ignore"):
        at = int(np.argmax(~(np.abs(values) <= LARGEST_HALF)))
    place = [int(i) for i in np.unravel_index(first + at, tensor.shape)]
    value = float(values[at])
    what = f"tensor {printable(tensor.name)} has {value:g} at {place}"
    if math.isfinite(value):
        return (
            f"{what}, which {item.format.name} cannot hold: give it another type, "
            f"as in --tensor-type '^{tensor.name}$=bf16'"
        )
    return f"{what}: the file is damaged, or was so when it was converted; nothing was written"
