"""A repository of the Hugging Face hub as a place of files, read in byte ranges.

Only the wanted bytes are read: headers cost kilobytes, tensors their own bytes. `download` puts
whole files into the hub's cache instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from ...core.errors import FileFormatError
from ...core.gguf.printable import printable, printable_path
from ...core.hub.http_client import HttpClient, RemoteError, client_from_environment, is_offline
from ...core.hub.hub_cache import (
    HubFile,
    cached_file,
    cached_snapshot,
    check_room,
    download_file,
    file_url,
    is_commit,
    is_safe_name,
    is_sha256,
    set_revision,
    snapshot_folder,
)
from .byte_source import ByteSource, LocalSource
from .folder import FilePlace, Folder, ModelCheckpoint, read_checkpoint
from .range_fetch import ByteRange, RangeFile, joined_ranges
from .safetensors import StoredTensor

_AT_ONCE: Final = 8
_MANY: Final = 4  # files, from which on it is worth it
HEAD_BYTES: Final = 1 << 16  # read at once: most headers, and the small files
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_SCHEME: Final = "hf://"

Progress = Callable[[str, float], None]


class Listed(Struct, frozen=True):
    size: int | None
    sha256: str | None


class RepositoryName(Struct, frozen=True):
    repo: str  # owner/name
    revision: str = "main"
    file: str = ""  # of the repository, where one was named

    @property
    def label(self) -> str:
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"


def parse_repository(text: str, revision: str | None = None) -> RepositoryName | None:
    """owner/name, owner/name@revision, owner/name/file or owner/name@revision:file, all with hf://
    before them or without; else None."""
    text = text.removeprefix(_SCHEME)
    repo, at, rest = text.partition("@")
    named, _, file = rest.partition(":") if at else ("", "", "")
    if at and not named:
        return None
    owner, _, name = repo.partition("/")
    name, _, tail = name.partition("/")
    if (tail and (at or not is_safe_name(tail))) or not _NAME.fullmatch(f"{owner}/{name}"):
        return None
    if file and not is_safe_name(file):
        return None
    return RepositoryName(f"{owner}/{name}", revision or named or "main", tail or file)


class Repository:
    """A `FilePlace`; what is below its subfolders is in `files` only."""

    def __init__(self, name: RepositoryName, client: HttpClient | None = None) -> None:
        self.name, self.label = name, name.label
        self._client = client or client_from_environment()
        rev = quote(name.revision, safe="")
        url = f"{self._client.endpoint}/api/models/{name.repo}/revision/{rev}?blobs=true"
        listing = self._client.json(url, self.label)
        self.commit, self.files = _read_listing(listing, self.label)
        self._heads: dict[str, bytes] = {}  # that were fetched ahead

    def names(self) -> list[str]:
        return sorted(name for name in self.files if "/" not in name)

    def paths(self) -> list[Path]:
        return [path for path in map(self.local_path, self.names()) if path is not None]

    def below(self, folder: str) -> list[str]:
        start = f"{folder}/"
        inside = [name.removeprefix(start) for name in self.files if name.startswith(start)]
        return sorted(name for name in inside if "/" not in name)

    def open(self, name: str) -> ByteSource:
        if (local := self.local_path(name)) is not None:
            return LocalSource(local)
        size, head = self._size(name), self._heads.pop(name, b"")
        return RemoteSource(self._client, self._url(name), f"{self.label}/{name}", size, head)

    def expect(self, names: list[str]) -> None:
        """Some at once: a large checkpoint has 160 files, and each costs a few round trips."""
        if len(names) < _MANY:
            return
        wanted = [name for name in names if self.local_path(name) is None]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            shares = [wanted[i::_AT_ONCE] for i in range(_AT_ONCE)]
            for heads in pool.map(self._fetch_heads, shares):
                self._heads |= heads

    def _fetch_heads(self, names: list[str]) -> dict[str, bytes]:
        client, heads = self._client.twin(), {}
        try:
            for name in names:
                what, size = f"{self.label}/{name}", self._size(name)
                stop = min(HEAD_BYTES, size)
                heads[name] = bytes(client.read(self._url(name), 0, stop, size, what))
        finally:
            client.close()
        return heads

    def local_path(self, name: str) -> Path | None:
        """Where a file is on this machine, if it was downloaded."""
        return cached_file(self.name.repo, self.commit, name)

    @property
    def folder(self) -> Path:
        """Where files are on this machine."""
        return snapshot_folder(self.name.repo, self.commit)

    def download(self, names: Sequence[str], progress: Progress) -> None:
        """Puts whole files into the hub's cache, going on where an earlier try was cut off."""
        files = [
            HubFile(self.name.repo, self.commit, name, self._size(name), self.files[name].sha256)
            for name in names
        ]
        check_room(files)
        for file in files:
            share = partial(_report_share, progress, file)
            download_file(self._client, file, share)
        set_revision(self.name.repo, self.name.revision, self.commit)

    def close(self) -> None:
        self._client.close()

    def _url(self, name: str) -> str:
        return file_url(self._client.endpoint, self.name.repo, self.commit, name)

    def _size(self, name: str) -> int:
        found = self.files.get(name)
        if found is None:
            raise FileFormatError(f"{self.label} has no file {printable(name)}")
        if found.size is None:
            size = self._client.size(self._url(name), f"{self.label}/{name}")
            self.files[name] = found = Listed(size, found.sha256)
        assert found.size is not None
        return found.size


def open_repository(text: str, revision: str | None = None) -> FilePlace:
    """For a text that is no path here, but could have been meant to be one: only what looks like a
    repository is asked for. Without a network, what the hub's own tools have downloaded."""
    name = parse_repository(text, revision)
    if name is None or _looks_like_a_path(text):
        raise FileFormatError(f"{printable_path(Path(text))}: no such file or folder")
    owner = name.repo.partition("/")[0]
    if not text.startswith(_SCHEME) and Path(owner).exists():
        raise FileFormatError(
            f"{printable_path(Path(text))}: no such file or folder, but there is {owner} here; if "
            f"the hub's repository is meant, say {_SCHEME}{name.label}"
        )
    if is_offline():
        snapshot = cached_snapshot(name.repo, name.revision)
        if snapshot is None:
            raise RemoteError(
                f"{name.label}: HF_HUB_OFFLINE is set, and it was not downloaded before"
            )
        return Folder(snapshot)
    try:
        return Repository(name)
    except RemoteError as error:
        raise RemoteError(f"{error} (and there is no such path here)") from None


def _looks_like_a_path(text: str) -> bool:
    return text.endswith((".gguf", ".safetensors")) and text.count("/") < 2


def open_place(where: str | os.PathLike[str], revision: str | None = None) -> FilePlace:
    """A path that is there wins; nothing is fetched unless a repository is named."""
    path = Path(where)
    if path.is_dir():
        return Folder(path)
    if path.exists():
        if path.suffix == ".gguf":
            raise FileFormatError(f"{printable_path(path)} is a GGUF, not a checkpoint's folder")
        raise FileFormatError(f"{printable_path(path)} is a file; give the folder that it is in")
    return open_repository(os.fspath(where), revision)


def open_checkpoint(where: str | os.PathLike[str], revision: str | None = None) -> ModelCheckpoint:
    return read_checkpoint(open_place(where, revision))


class RemoteSource:
    """A file that is read in byte ranges; its first kilobytes at once, and only once."""

    def __init__(
        self, client: HttpClient, url: str, label: str, size: int, head: bytes = b""
    ) -> None:
        self.label, self.size = label, size
        self._client, self._url, self._head = client, url, head
        self._ahead: RangeFile | None = None

    def read(self, start: int, stop: int) -> bytes | memoryview:
        if not 0 <= start <= stop <= self.size:
            raise FileFormatError(f"{self.label} ends before byte {stop}")
        if start < HEAD_BYTES and not self._head and stop > start:
            self._head = bytes(self._fetch(0, min(self.size, HEAD_BYTES)))
        if self._ahead is not None and (found := self._ahead.read(start, stop)) is not None:
            return found
        head = self._head[start:stop]
        if len(head) == stop - start:
            return head
        rest = self._fetch(start + len(head), stop)
        return head + rest if head else rest

    def fetch_ahead(self, ranges: list[ByteRange], report: Callable[[int], None]) -> None:
        """Fetches these before they are read: neighbours together, several at a time. `report` is
        called with the number of bytes that have come."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = RangeFile(joined_ranges(ranges))

        def fetch(client: HttpClient, start: int, stop: int) -> Iterator[bytes]:
            return client.stream(self._url, start, stop, self.size, self.label)

        self._ahead.fill(self._client, fetch, report)

    def close(self) -> None:
        self._head = b""
        if self._ahead is not None:
            self._ahead.close()

    def _fetch(self, start: int, stop: int) -> memoryview:
        return self._client.read(self._url, start, stop, self.size, self.label)


def fetch_ahead(tensors: Iterable[StoredTensor], progress: Callable[[int, int], None]) -> None:
    """Fetches those that are in repositories. `progress`: bytes that have come, of all."""
    wanted: dict[RemoteSource, list[ByteRange]] = {}
    for tensor in tensors:
        if isinstance(tensor.source, RemoteSource):
            range_of_tensor = tensor.start, tensor.start + tensor.n_bytes
            wanted.setdefault(tensor.source, []).append(range_of_tensor)
    total = sum(stop - start for ranges in wanted.values() for start, stop in ranges)
    before = 0
    for source, ranges in wanted.items():
        source.fetch_ahead(ranges, partial(_report, progress, before, total))
        before += sum(stop - start for start, stop in ranges)


def fetch_rows_ahead(tensor: StoredTensor, rows: Iterable[int]) -> None:
    """Some rows of a tensor, if it is in a repository."""
    if isinstance(tensor.source, RemoteSource):
        size = tensor.n_bytes // max(1, tensor.shape[0])
        starts = [tensor.start + size * row for row in rows]
        tensor.source.fetch_ahead([(start, start + size) for start in starts], lambda _n: None)


def _report_share(progress: Progress, file: HubFile, n: int) -> None:
    progress(f"fetching {file.name}", n / max(file.size, 1))


def _report(progress: Callable[[int, int], None], before: int, total: int, n: int) -> None:
    """`n` bytes of one file; some that were not wanted come between others."""
    progress(min(before + n, total), total)


def _read_listing(listing: Any, label: str) -> tuple[str, dict[str, Listed]]:
    match listing:
        case {"sha": str(commit), "siblings": list(siblings)} if is_commit(commit):
            pass
        case _:
            raise RemoteError(f"{label}: the server's answer does not list a repository's files")
    files: dict[str, Listed] = {}
    for entry in siblings:
        match entry:
            case {"rfilename": str(name)} if is_safe_name(name):
                files[name] = _listed(entry)
    return commit, files


def _listed(entry: dict[str, Any]) -> Listed:
    lfs = entry.get("lfs")
    lfs = lfs if isinstance(lfs, dict) else {}
    size = lfs.get("size", entry.get("size"))
    sha256 = lfs.get("sha256")
    return Listed(
        size if type(size) is int and 0 <= size < 1 << 62 else None,
        sha256 if isinstance(sha256, str) and is_sha256(sha256) else None,
    )
