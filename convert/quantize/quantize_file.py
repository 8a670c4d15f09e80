"""From a plan to a file: each tensor slab by slab, stored bytes to float32 to stored bytes.

Only a few slabs are in memory at any time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from threadpoolctl import threadpool_limits

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from ...core.gguf.quants import dequantize
from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import Tensor
from ...core.gguf.types import Typed, ValueType
from ...core.gguf.writer import TensorData
from ..files.output_file import OutputFile, Progress, check_output, write
from .native_quantizer import (
    HALVES,
    LARGEST_HALF,
    QUANTISED,
    SLAB_ELEMENTS,
    VECTOR,
    WIDENERS,
    Bytes,
    Floats,
    NativeQuantizer,
    narrowed,
)
from .quantize_plan import PlanItem, QuantizePlan

QUANTIZATION_VERSION = 2  # of ggml's formats, as files state it
_RELEASE_BYTES = 1 << 26


class QuantizeErrors(Struct):
    """The loss of one type or of all."""

    squares: float = 0.0  # of the differences
    total: float = 0.0  # of the values
    n: int = 0

    def add(self, other: QuantizeErrors) -> None:
        self.squares += other.squares
        self.total += other.total
        self.n += other.n

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.n) if self.n else 0.0

    @property
    def relative(self) -> float:
        return math.sqrt(self.squares / self.total) if self.total else 0.0


class QuantizeResult(Struct, frozen=True):
    paths: list[Path]
    n_bytes: int  # of the files
    seconds: float
    source_bytes: int
    errors: dict[str, QuantizeErrors]  # by type, if they were measured


def quantize_file(
    source: GgufFile,
    plan: QuantizePlan,
    output: OutputFile,
    *,
    n_threads: int,
    measures: bool = False,
    progress: Progress = lambda done, total: None,
    compiling: Callable[[int, int], None] | None = None,
) -> QuantizeResult:
    """Writes the output whole or not at all; `progress` counts its bytes."""
    check_output(output, source.paths, plan.n_bytes)
    started = time.perf_counter()
    native = NativeQuantizer([name for name in plan.formats if name in QUANTISED], compiling)
    pool = ThreadPoolExecutor(n_threads, "quantize")
    try:
        converter = SlabConverter(native, pool, n_threads, measures)
        tensors = [_data(source, item, plan, converter) for item in plan.items]
        with threadpool_limits(limits=1, user_api="blas"):  # the pool's threads are enough
            paths = write(output, new_metadata(source, plan), tensors, [source], progress)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return QuantizeResult(
        paths=paths,
        n_bytes=sum(path.stat().st_size for path in paths),
        seconds=time.perf_counter() - started,
        source_bytes=sum(item.tensor.n_bytes for item in plan.items),
        errors=converter.errors,
    )


def new_metadata(source: GgufFile, plan: QuantizePlan) -> dict[str, Typed]:
    """The source's entries, with the new type and the origin of the importance."""
    entries = {key: source.metadata.entry(key) for key in source.metadata}
    recipe, importance = plan.options.recipe, plan.options.importance
    if recipe is not None:
        entries["general.quantization_version"] = Typed(ValueType.U32, QUANTIZATION_VERSION)
        entries["general.file_type"] = Typed(ValueType.U32, recipe.file_type)
    if importance is not None:
        entries["quantize.imatrix.file"] = Typed(ValueType.STRING, importance.path.name)
        if importance.datasets:
            entries["quantize.imatrix.dataset"] = Typed(ValueType.STRING, importance.datasets[0])
        entries["quantize.imatrix.entries_count"] = Typed(ValueType.U32, len(importance.values))
        if importance.n_chunks > 0:
            entries["quantize.imatrix.chunks_count"] = Typed(ValueType.U32, importance.n_chunks)
    return entries


def _data(
    source: GgufFile, item: PlanItem, plan: QuantizePlan, converter: SlabConverter
) -> TensorData:
    tensor, importance = item.tensor, plan.options.importance
    if item.is_copy:
        return TensorData(tensor.name, tensor.shape, item.format, source.ranges[tensor.name])
    columns = None if importance is None else importance.of(tensor.name, tensor.shape)
    return TensorData(
        tensor.name, tensor.shape, item.format, partial(converter.pieces, item, columns)
    )


class Slab(Struct, frozen=True):
    """Whole rows of one matrix."""

    first: int  # element of the tensor
    n_rows: int
    matrix: int  # number of the expert


def slabs_of(tensor: Tensor) -> list[Slab]:
    """Slabs in order; experts apart, because each has its own importance."""
    row = tensor.shape[-1]
    n_rows = tensor.shape[-2] if len(tensor.shape) > 1 else 1
    step = max(1, SLAB_ELEMENTS // max(1, row))
    return [
        Slab((matrix * n_rows + start) * row, min(step, n_rows - start), matrix)
        for matrix in range(math.prod(tensor.shape[:-2]))
        for start in range(0, n_rows, step)
    ]


Converted = tuple[Bytes, QuantizeErrors | None]


class SlabConverter(Struct):
    """Converts tensors on the threads of a pool."""

    native: NativeQuantizer
    pool: ThreadPoolExecutor
    n_threads: int
    measures: bool = False
    errors: dict[str, QuantizeErrors] = field(default_factory=dict)  # by type

    def pieces(self, item: PlanItem, importance: Floats | None) -> Iterator[Bytes]:
        """The tensor's new bytes, in order."""
        waiting: deque[Future[Converted]] = deque()
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

    def _take(self, waiting: deque[Future[Converted]], item: PlanItem) -> Bytes:
        piece, errors = waiting.popleft().result()
        if errors is not None:
            self.errors.setdefault(item.format.name, QuantizeErrors()).add(errors)
        return piece

    def _convert(self, item: PlanItem, slab: Slab, importance: Floats | None) -> Converted:
        row = item.tensor.shape[-1]
        n = slab.n_rows * row
        values = self._floats(item, slab.first, n).reshape(slab.n_rows, row)
        if item.format.name in QUANTISED:
            piece = np.empty(item.format.n_bytes(n), np.uint8)
            columns = None if importance is None else importance[slab.matrix]
            self.native.quantize(item.format, values, columns, piece)
        else:
            piece = narrowed(values, item.format)
        if not self.measures:
            return piece, None
        wide = values.astype(np.float64).ravel()
        lost = dequantize(piece, item.format, values.shape).astype(np.float64).ravel() - wide
        return piece, QuantizeErrors(float(lost @ lost), float(wide @ wide), wide.size)

    def _floats(self, item: PlanItem, first: int, n: int) -> Floats:
        form = item.tensor.format
        stored = item.tensor.data[form.n_bytes(first) : form.n_bytes(first) + form.n_bytes(n)]
        if form.name in WIDENERS and n % VECTOR == 0:
            values = np.empty(n, np.float32)
            largest = self.native.widen(form.name, stored, values)
        else:
            values = dequantize(stored, form, (n,))
            largest = float(np.abs(values).max(initial=0.0))
        most = LARGEST_HALF if item.format.name in HALVES else np.finfo(np.float32).max
        if not largest <= most:
            raise ModelError(_complaint(item, values, first))
        return values


def _release(tensor: Tensor, slabs: list[Slab], done: int, released: int) -> int:
    """Let the system take back the pages of a large tensor that were read; returns the byte up to
    which they are released."""
    if done < 0:
        return released
    end = tensor.format.n_bytes(slabs[done].first)
    if end - released < _RELEASE_BYTES:
        return released
    part = tensor.data[released:end]
    Tensor(tensor.name, (part.size,), tensor.format, part).release()
    return end


def _complaint(item: PlanItem, values: Floats, first: int) -> str:
    """The element that cannot be stored, and a remedy."""
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
