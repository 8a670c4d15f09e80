"""From what was typed to what can be looked at: a GGUF file, a folder, a repository."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...core.errors import FileFormatError, ModelError
from ...core.gguf.cursor import MoreNeededError
from ...core.gguf.header import MAGIC, Header, parse_header
from ...core.gguf.metadata import Metadata
from ...core.gguf.printable import listing, printable_path
from ...core.gguf.reader import GgufFile, open_gguf
from ...core.gguf.shards import check_set, shard_paths
from ..checkpoint.byte_source import ByteSource
from ..checkpoint.folder import FilePlace, Folder, ModelCheckpoint, read_checkpoint
from ..checkpoint.repository import Repository, open_repository, parse_repository
from ..files.header_only import header_only, without_numbers

FIRST_BYTES: Final = 1 << 18  # of a header; vocabularies take megabytes, and are read as well
MAX_HEADER_BYTES: Final = 1 << 28
_SIGNATURES: Final = (
    (b"PK\x03\x04", "a PyTorch pickle or a zip archive"),
    (b"\x80", "a Python pickle"),
    (b"ggml", "a GGML file, the format before GGUF; convert the model again"),
    (b"tjgg", "a GGJT file, the format before GGUF; convert the model again"),
    (b"\x93NUMPY", "a numpy array"),
    (b"version https://git-lfs", "a Git LFS pointer (git lfs pull fetches the file itself)"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"<html", "an HTML page"),
)  # fmt: skip


class OpenedGguf(Struct, frozen=True):
    file: GgufFile
    has_numbers: bool
    n_bytes: int  # of all its files


def open_anything(where: str, revision: str | None = None) -> OpenedGguf | ModelCheckpoint:
    if not where:
        raise FileFormatError("the name of a file, folder or repository is empty")
    path = Path(where)
    if path.is_dir():
        return _open_place(Folder(path), path)
    if path.exists():
        return _open_file(path)
    place, name = open_repository(where, revision), parse_repository(where, revision)
    if isinstance(place, Folder):  # without a network
        if name is not None and name.file:
            return _open_file(place.path / name.file)
        return _open_place(place, place.path)
    assert isinstance(place, Repository), "it is one or the other"
    assert name is not None, "it was opened"
    if name.file:
        return open_remote_gguf(place, name.file)
    return _open_place(place, None)


def _open_file(path: Path) -> OpenedGguf | ModelCheckpoint:
    if (
        path.name.endswith((".safetensors", ".safetensors.index.json"))
        or path.name == "config.json"
    ):
        return read_checkpoint(Folder(path.parent))
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(64)
        if start and not start.startswith(MAGIC):
            raise FileFormatError(f"{printable_path(path)}: is {_named(start)}")
        _check_shards(path)
    return open_whole_gguf(path)


def open_whole_gguf(path: Path) -> OpenedGguf:
    """A file on this machine, with its numbers."""
    opened = open_gguf(path)
    return OpenedGguf(opened, True, sum(found.stat().st_size for found in opened.paths))


def _named(start: bytes) -> str:
    kind = next((what for magic, what in _SIGNATURES if start.startswith(magic)), None)
    if kind:
        return f"{kind}, neither a GGUF file nor a folder of safetensors"
    return f"neither a GGUF file nor a folder of safetensors: it begins with {start[:4]!r}"


def _check_shards(path: Path) -> None:
    """All that are missing at once, not the first alone."""
    with path.open("rb") as file:
        header = _grow(file.read, path.stat().st_size, printable_path(path))
    paths = shard_paths(path, Metadata(header.entries, printable_path(path)))
    missing = [other.name for other in paths if not other.is_file()]
    if missing:
        raise FileFormatError(
            f"{printable_path(path)}: {len(missing)} of its {len(paths)} parts missing from the "
            f"same folder: {', '.join(missing[:4])}{' ...' if len(missing) > 4 else ''}"
        )


def _grow(more: Callable[[int], bytes], size: int, label: str) -> Header:
    """The header of a file, of which as much is read as it turns out to need."""
    data, wanted = b"", min(FIRST_BYTES, size)
    while True:
        data += more(wanted - len(data))
        try:
            return parse_header(data, label, size)
        except MoreNeededError:
            if len(data) >= MAX_HEADER_BYTES:
                raise FileFormatError(f"{label}: its header is longer than any known") from None
            wanted = min(4 * len(data), size)


def open_remote_gguf(repository: Repository, name: str) -> OpenedGguf:
    label = f"{repository.label}/{name}"
    headers = [(Path(label), *_remote_header(repository, name))]
    paths = shard_paths(Path(label), Metadata(headers[0][1].entries, label))
    if len(paths) > 1:
        folder = name.rpartition("/")[0]
        names = [f"{folder}/{path.name}" if folder else path.name for path in paths]
        if missing := [other for other in names if other not in repository.files]:
            raise FileFormatError(f"{label}: parts are missing: {', '.join(missing[:4])}")
        headers = [(p, *_remote_header(repository, n)) for p, n in zip(paths, names, strict=True)]
        check_set([(path, header) for path, header, _ in headers])
    first = headers[0][1]
    infos = (info for _, header, _ in headers for info in header.infos)
    file = header_only(
        [path for path, _, _ in headers],
        Metadata(first.entries, label),
        (without_numbers(info.name, info.shape, info.format) for info in infos),
        first.alignment,
    )
    return OpenedGguf(file, False, sum(size for _, _, size in headers))


def _remote_header(repository: Repository, name: str) -> tuple[Header, int]:
    source: ByteSource = repository.open(name)
    at = 0

    def more(n: int) -> bytes:
        nonlocal at
        at += n
        return bytes(source.read(at - n, at))

    return _grow(more, source.size, source.label), source.size


def _open_place(place: FilePlace, folder: Path | None) -> OpenedGguf | ModelCheckpoint:
    names = place.names()
    if any(name.endswith(".safetensors") for name in names) and "config.json" in names:
        return read_checkpoint(place)
    all_names = sorted(place.files) if isinstance(place, Repository) else names
    ggufs = [name for name in all_names if name.endswith(".gguf")]
    firsts = [name for name in ggufs if "-of-" not in name or "-00001-of-" in name]
    if len(firsts or ggufs) == 1:
        name = (firsts or ggufs)[0]
        if isinstance(place, Repository):
            return open_remote_gguf(place, name)
        assert folder is not None
        return _open_file(folder / name)
    if ggufs:
        raise ModelError(_which(place.label, firsts or ggufs, os.sep if folder else "/"))
    if "config.json" not in names:
        raise ModelError(
            f"{place.label}: neither a GGUF file nor a checkpoint (config.json, .safetensors) in it"
        )
    return read_checkpoint(place)  # which says what is missing


def _which(label: str, names: list[str], separator: str) -> str:
    listed = listing(names, 6)
    return (
        f"{label} has {len(names)} GGUF files: give one of them, {label}{separator}FILE: {listed}"
    )
