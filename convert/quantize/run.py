"""From a plan to a file: space, progress, and what came out of it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError, SpecdecError
from ...core.gguf.reader import GgufFile
from ...core.gguf.shown import shown_path
from ...core.gguf.types import Typed, ValueType
from ...core.gguf.writer import TensorData, write_gguf
from .native import WRITERS, Native
from .plan import Item, Plan
from .slabs import Bytes, Converter, Errors

QUANTIZATION_VERSION = 2  # of ggml's formats, as files state it
_COPIED_AT_ONCE = 1 << 24
_MARGIN_BYTES = 1 << 16  # for metadata that come in addition


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str
    done: int  # bytes of the source
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    paths: list[Path]
    n_bytes: int  # of the files
    seconds: float
    source_bytes: int
    errors: dict[str, Errors]  # by type, if they were measured


@dataclass(frozen=True, slots=True)
class Target:
    path: Path
    overwrite: bool = False
    max_shard_bytes: int | None = None


def quantize_file(
    source: GgufFile,
    plan: Plan,
    target: Target,
    *,
    n_threads: int,
    measures: bool = False,
    report: Callable[[Progress], None] | None = None,
) -> Result:
    """Writes the target whole or not at all."""
    check_target(source, plan, target)
    report = report or _say_nothing
    started = time.perf_counter()
    formats = [name for name in plan.formats if name in WRITERS]

    def compiling(done: int, total: int) -> None:
        report(Progress("preparing the quantisers", done, total, 0.0))

    native = Native(formats, compiling)
    pool = ThreadPoolExecutor(n_threads, "quantize")
    try:
        converter = Converter(native, pool, n_threads, measures)
        watch = _Watch(report, sum(item.tensor.n_bytes for item in plan.items))
        tensors = [_data(item, plan, converter, watch) for item in plan.items]
        paths = write_gguf(
            target.path,
            new_metadata(source, plan),
            tensors,
            alignment=source.alignment,
            max_shard_bytes=target.max_shard_bytes,
            overwrite=target.overwrite,
        )
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return Result(
        paths=paths,
        n_bytes=sum(path.stat().st_size for path in paths),
        seconds=time.perf_counter() - started,
        source_bytes=watch.total,
        errors=converter.errors,
    )


def check_target(source: GgufFile, plan: Plan, target: Target) -> None:
    """What would fail after minutes fails now."""
    folder = target.path.parent
    if not folder.is_dir():
        raise ConfigError(f"no such folder: {shown_path(folder)}")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"no permission to write to {shown_path(folder)}")
    if target.path.is_dir():
        raise ConfigError(f"{shown_path(target.path)} is a folder: give a file name")
    if any(_writes_over(target, path) for path in source.paths):
        raise ConfigError(f"{shown_path(target.path)} is the input: choose another name")
    if os.path.lexists(target.path) and not target.overwrite:
        raise ConfigError(f"{shown_path(target.path)} exists already: --force replaces it")
    stored = sum(tensor.n_bytes for tensor in source.tensors.values())
    heads = sum(identity.size for identity in source.identities) - stored
    needed = plan.n_bytes + heads + _MARGIN_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SpecdecError(
            f"{shown_path(target.path)} needs {needed / 2**30:.2f} GiB, and "
            f"{free / 2**30:.2f} GiB are free in {shown_path(folder)}"
        )


def _writes_over(target: Target, path: Path) -> bool:
    """Itself, or as one of the shards, whose number is not known yet."""
    if target.path.exists() and target.path.samefile(path):
        return True
    found = re.fullmatch(r"(.*)-\d{5}-of-\d{5}\.gguf", path.name, re.DOTALL)
    stem = target.path.name.removesuffix(".gguf")
    is_beside = path.parent.resolve() == target.path.parent.resolve()
    return bool(target.max_shard_bytes and found and found[1] == stem and is_beside)


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


class _Watch:
    """How far the work is, counted in bytes of the source."""

    def __init__(self, report: Callable[[Progress], None], total: int) -> None:
        self._report, self.total = report, total
        self._done, self._started = 0, time.perf_counter()

    def step(self, n_bytes: int, name: str) -> None:
        self._done += n_bytes
        seconds = time.perf_counter() - self._started
        self._report(Progress(name, self._done, self.total, seconds))


def _say_nothing(_: Progress) -> None:
    pass


def _data(item: Item, plan: Plan, converter: Converter, watch: _Watch) -> TensorData:
    tensor = item.tensor
    make = _copied if item.is_copy else partial(_converted, plan=plan, converter=converter)
    pieces: Any = partial(make, item, watch=watch)
    return TensorData(tensor.name, tensor.shape, item.format, pieces)


def _copied(item: Item, *, watch: _Watch) -> Iterator[Bytes]:
    data = item.tensor.data
    for start in range(0, data.size, _COPIED_AT_ONCE):
        piece = data[start : start + _COPIED_AT_ONCE]
        yield piece
        watch.step(piece.size, item.tensor.name)
    item.tensor.release()


def _converted(item: Item, *, plan: Plan, converter: Converter, watch: _Watch) -> Iterator[Bytes]:
    tensor, importance = item.tensor, plan.wishes.importance
    columns = None if importance is None else importance.of(tensor.name, tensor.shape)
    for piece in converter.pieces(item, columns):
        yield piece
        share = piece.size * item.format.block_size // item.format.block_bytes
        watch.step(tensor.format.n_bytes(share), tensor.name)
