"""Opens a GGUF file or a set of shards. Every field is checked before it is used.

Tensor data stay in the page cache: a mapped file must not be shortened while it is open (the
process would get SIGBUS). Where that may happen, `open_gguf(path, mmap=False)` copies instead.
Metadata never point into the mapping. Bytes after the last tensor are ignored, as writers pad.
"""

from __future__ import annotations

import mmap as memory_map
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import numpy as np
from msgspec import Struct

from ..errors import FileFormatError
from .cursor import Buffer
from .header import Header, parse_header
from .metadata import Metadata
from .printable import printable_path
from .ranges import FileRange
from .shards import check_set, shard_paths
from .tensors import Tensor

__all__ = ["GgufFile", "Tensor", "open_gguf"]


class FileIdentity(NamedTuple):
    """What changes when a file is replaced or written to; of the file that was opened."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileIdentity:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class GgufFile(Struct):
    path: Path  # as given
    paths: tuple[Path, ...]  # all shards in order; one for a plain file
    metadata: Metadata  # of the first shard, which alone is complete
    tensors: dict[str, Tensor]
    alignment: int
    identities: tuple[FileIdentity, ...]  # of `paths`
    ranges: dict[str, FileRange]  # where the bytes of each tensor lie
    _mappings: list[memory_map.mmap]

    @property
    def label(self) -> str:
        """The path as it may be printed."""
        return printable_path(self.path)

    @property
    def n_params(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors.values())

    @property
    def n_bytes(self) -> int:
        """Of its tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    def is_unchanged(self) -> bool:
        """Whether the paths still lead to the files that were opened, unmodified."""
        try:
            now = tuple(FileIdentity.of(path.stat()) for path in self.paths)
        except OSError:
            return False
        return now == self.identities

    def close(self) -> None:
        """Forget the tensors. Memory goes back when the last array over it is gone."""
        self.tensors.clear()
        for mapping in self._mappings:
            with suppress(BufferError):  # a view of it is still in use
                mapping.close()
        self._mappings.clear()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Part(Struct, frozen=True):
    path: Path
    data: Buffer
    identity: FileIdentity
    header: Header


def open_gguf(path: str | os.PathLike[str], *, mmap: bool = True) -> GgufFile:
    """Any shard of a set opens all of it; the other names are computed, never read."""
    load = _map_file if mmap else _read_file
    first = _open_part(Path(path), load)
    parts = [first]
    paths = shard_paths(first.path, Metadata(first.header.entries, printable_path(path)))
    if len(paths) > 1:
        parts = [first if other == first.path else _open_part(other, load) for other in paths]
        check_set([(part.path, part.header) for part in parts])
    return GgufFile(
        path=first.path,
        paths=tuple(part.path for part in parts),
        metadata=Metadata(parts[0].header.entries, printable_path(parts[0].path)),
        tensors={name: tensor for part in parts for name, tensor in _bind(part).items()},
        alignment=parts[0].header.alignment,
        identities=tuple(part.identity for part in parts),
        ranges={name: place for part in parts for name, place in _ranges(part).items()},
        _mappings=[part.data for part in parts if isinstance(part.data, memory_map.mmap)],
    )


def _open_part(path: Path, load: Callable[[BinaryIO], Buffer]) -> _Part:
    try:
        if not path.is_file() and path.exists():
            what = "is a folder, not a GGUF file" if path.is_dir() else "is not a file"
            raise FileFormatError(f"{printable_path(path)}: {what}")
        with open(path, "rb") as file:
            identity = FileIdentity.of(os.fstat(file.fileno()))
            data = load(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileFormatError(f"{printable_path(path)}: cannot be read: {reason}") from None
    return _Part(path, data, identity, parse_header(data, printable_path(path)))


def _map_file(file: BinaryIO) -> Buffer:
    size = os.fstat(file.fileno()).st_size
    if not size:
        return b""  # cannot be mapped; the parser reports that the file is empty
    return memory_map.mmap(file.fileno(), size, access=memory_map.ACCESS_READ)


def _read_file(file: BinaryIO) -> Buffer:
    return file.read()


def _bind(part: _Part) -> dict[str, Tensor]:
    whole = np.frombuffer(part.data, np.uint8)
    tensors: dict[str, Tensor] = {}
    for info in part.header.infos:
        start = part.header.data_start + info.offset
        data = whole[start : start + info.n_bytes]
        tensors[info.name] = Tensor(info.name, info.shape, info.format, data)
    return tensors


def _ranges(part: _Part) -> dict[str, FileRange]:
    start = part.header.data_start
    return {
        info.name: FileRange(part.path, start + info.offset, info.n_bytes)
        for info in part.header.infos
    }
