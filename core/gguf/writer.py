"""Writing GGUF: any metadata, any tensor bytes, one file or shards; streamed and atomic."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..errors import ConfigError, FileFormatError
from .atomic_write import atomic_write
from .encode import check_writable, encode_entries, encode_info, exact_types
from .header import DEFAULT_ALIGNMENT, MAGIC, MAX_ALIGNMENT
from .printable import printable, printable_path
from .quants import BlockFormat
from .ranges import FileRange, append_range
from .shards import shard_name
from .tensors import Tensor, align
from .types import Typed, ValueType, Writable

VERSION = 3
MAX_SHARDS = (1 << 16) - 1  # split.count is a u16

Piece = bytes | bytearray | memoryview | NDArray[np.generic] | FileRange
Report = Callable[[int], None]  # called with the number of bytes just written
Pieces = Piece | Iterable[Piece] | Callable[[], Iterable[Piece]]


class TensorData(Struct, frozen=True):
    """A tensor to write. `data` is read once, when its turn comes."""

    name: str
    shape: tuple[int, ...]  # numpy order, outermost first
    format: BlockFormat
    data: Pieces

    @classmethod
    def of(cls, tensor: Tensor) -> TensorData:
        return cls(tensor.name, tensor.shape, tensor.format, tensor.data)

    @property
    def n_bytes(self) -> int:
        return self.format.n_bytes(math.prod(self.shape))

    def pieces(self) -> Iterator[memoryview | FileRange]:
        data = self.data() if callable(self.data) else self.data
        if isinstance(data, bytes | bytearray | memoryview | np.ndarray | FileRange):
            data = [data]
        return map(_flat, data)


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Writable],
    tensors: Iterable[TensorData],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    max_shard_bytes: int | None = None,
    overwrite: bool = False,
    keeps_access: bool = False,
    report: Report = lambda n_bytes: None,
) -> list[Path]:
    """The files written: `path`, or `stem-00001-of-0000N.gguf` beside it.

    Metadata keep their order; those of a `Metadata` keep their exact types. `split.*` keys are
    this function's own. `max_shard_bytes` counts tensor data; a larger tensor stands alone.
    `keeps_access`: files that are replaced leave their mode and owner to the new ones.
    `report` is called with the number of tensor bytes just written; if it raises, no file is left.
    """
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ConfigError(f"alignment {alignment} is not a power of two up to {MAX_ALIGNMENT}")
    whole = _check_tensors(list(tensors))
    shards = _divide(whole, alignment, max_shard_bytes)
    paths = _name_shards(Path(path), len(shards))
    entries = _with_alignment(exact_types(metadata), alignment)
    heads = [_head(entries, shards, number, alignment) for number in range(len(shards))]
    with atomic_write(paths, overwrite, keeps_access=keeps_access) as files:
        for file, head, shard, target in zip(files, heads, shards, paths, strict=True):
            _write_shard(file, head, shard, alignment, target, report)
    return paths


def _check_tensors(tensors: list[TensorData]) -> list[TensorData]:
    seen: set[str] = set()
    for tensor in tensors:
        check_writable(tensor.name, tensor.shape, tensor.format)
        if tensor.name in seen:
            raise FileFormatError(f"tensor {printable(tensor.name)} is to be written twice")
        seen.add(tensor.name)
    return tensors


def _divide(tensors: list[TensorData], alignment: int, most: int | None) -> list[list[TensorData]]:
    shards: list[list[TensorData]] = [[]]
    used = 0
    for tensor in tensors:
        size = align(tensor.n_bytes, alignment)
        if most is not None and shards[-1] and used + size > most:
            shards.append([])
            used = 0
        shards[-1].append(tensor)
        used += size
    if len(shards) > MAX_SHARDS:
        raise ConfigError(f"{len(shards)} shards are more than the {MAX_SHARDS} allowed")
    return shards


def _name_shards(path: Path, count: int) -> list[Path]:
    if count == 1:
        return [path]
    stem = path.name.removesuffix(".gguf")
    return [path.with_name(shard_name(stem, number, count)) for number in range(1, count + 1)]


def _with_alignment(entries: dict[str, Typed], alignment: int) -> dict[str, Typed]:
    """The entry keeps its place; a default alignment is added only where the source has the key."""
    kept = {key: entry for key, entry in entries.items() if not key.startswith("split.")}
    if alignment != DEFAULT_ALIGNMENT or "general.alignment" in kept:
        kept["general.alignment"] = Typed(ValueType.U32, alignment)
    return kept


def _head(
    entries: dict[str, Typed], shards: list[list[TensorData]], number: int, alignment: int
) -> bytes:
    """Everything before the data. Only the first shard has the model's metadata."""
    own = dict(entries) if number == 0 else _with_alignment({}, alignment)
    if len(shards) > 1:
        total = sum(map(len, shards))
        own["split.no"] = Typed(ValueType.U16, number)
        own["split.count"] = Typed(ValueType.U16, len(shards))
        own["split.tensors.count"] = Typed(ValueType.I32, total)
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(shards[number]), len(own))]
    parts.append(encode_entries(own))
    offset = 0
    for tensor in shards[number]:
        parts.append(encode_info(tensor.name, tensor.shape, tensor.format, offset))
        offset = align(offset + tensor.n_bytes, alignment)
    head = b"".join(parts)
    return head + bytes(align(len(head), alignment) - len(head))


def _write_shard(
    file: BinaryIO,
    head: bytes,
    tensors: list[TensorData],
    alignment: int,
    path: Path,
    report: Report,
) -> None:
    file.write(head)
    for tensor in tensors:
        written = 0
        for piece in tensor.pieces():
            written += piece.nbytes
            if isinstance(piece, FileRange):
                append_range(file, piece, report)
            else:
                file.write(piece)
                report(piece.nbytes)
        if written != tensor.n_bytes:
            raise FileFormatError(
                f"{printable_path(path)}: tensor {printable(tensor.name)} was given {written} "
                f"bytes, expected {tensor.n_bytes}"
            )
        file.write(bytes(align(written, alignment) - written))


def _flat(piece: Piece) -> memoryview | FileRange:
    if isinstance(piece, FileRange):
        return piece
    if isinstance(piece, np.ndarray):
        return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
    return memoryview(piece).cast("B")
