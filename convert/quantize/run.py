"""From a plan to a file, and what came out of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...core.gguf.reader import GgufFile
from ...core.gguf.types import Typed, ValueType
from ...core.gguf.writer import TensorData
from ..files.output_file import OutputFile, Progress, check_output, write
from .native import WRITERS, Native
from .plan import Item, Plan
from .slabs import Bytes, Converter, Errors

QUANTIZATION_VERSION = 2  # of ggml's formats, as files state it


@dataclass(frozen=True, slots=True)
class Result:
    paths: list[Path]
    n_bytes: int  # of the files
    seconds: float
    source_bytes: int
    errors: dict[str, Errors]  # by type, if they were measured


def quantize_file(
    source: GgufFile,
    plan: Plan,
    output: OutputFile,
    *,
    n_threads: int,
    measures: bool = False,
    progress: Progress = lambda done, total: None,
    compiling: Callable[[int, int], None] | None = None,
) -> Result:
    """Writes the output whole or not at all; `progress` counts its bytes."""
    check_output(output, source.paths, plan.n_bytes)
    started = time.perf_counter()
    formats = [name for name in plan.formats if name in WRITERS]
    native = Native(formats, compiling)
    pool = ThreadPoolExecutor(n_threads, "quantize")
    try:
        converter = Converter(native, pool, n_threads, measures)
        tensors = [_data(source, item, plan, converter) for item in plan.items]
        paths = write(output, new_metadata(source, plan), tensors, [source], progress)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return Result(
        paths=paths,
        n_bytes=sum(path.stat().st_size for path in paths),
        seconds=time.perf_counter() - started,
        source_bytes=sum(item.tensor.n_bytes for item in plan.items),
        errors=converter.errors,
    )


def new_metadata(source: GgufFile, plan: Plan) -> dict[str, Typed]:
    """The source's, with what the file is now; and where its importance came from."""
    entries = {key: source.metadata.entry(key) for key in source.metadata}
    recipe, importance = plan.wishes.recipe, plan.wishes.importance
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


def _data(source: GgufFile, item: Item, plan: Plan, converter: Converter) -> TensorData:
    tensor = item.tensor
    if item.is_copy:
        return TensorData(tensor.name, tensor.shape, item.format, source.ranges[tensor.name])
    pieces = partial(_converted, item, plan, converter)
    return TensorData(tensor.name, tensor.shape, item.format, pieces)


def _converted(item: Item, plan: Plan, converter: Converter) -> Iterator[Bytes]:
    tensor, importance = item.tensor, plan.wishes.importance
    columns = None if importance is None else importance.of(tensor.name, tensor.shape)
    yield from converter.pieces(item, columns)
