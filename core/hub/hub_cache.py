"""The cache of the Hugging Face hub on this machine, which its own tools share.

Files are where `huggingface_hub` expects them: `blobs/HASH`, and a link to that at
`snapshots/COMMIT/NAME`. It downloads a file anew that was cut off; here that goes on.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from ..errors import NextnError
from ..gguf.printable import printable_path
from .http_client import HttpClient, RemoteError

_COMMIT: Final = re.compile(r"[0-9a-fA-F]{7,64}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PART: Final = re.compile(r"[^/\\\0]+")
_UNFINISHED: Final = ".incomplete"
_REQUEST: Final = 1 << 24  # bytes
_AT_ONCE: Final = 4  # requests; what they bring is in memory until its turn


def is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def is_safe_name(name: str) -> bool:
    """A path that stays below the folder it is put into."""
    parts = name.split("/")
    return all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)


def file_url(endpoint: str, repo: str, commit: str, name: str) -> str:
    return f"{endpoint}/{repo}/resolve/{commit}/{quote(name)}"


def cache_folder() -> Path:
    """LLAMA_CACHE, where llama.cpp has the same files, or that of the hub's own tools."""
    from huggingface_hub import constants

    return Path(os.environ.get("LLAMA_CACHE") or constants.HF_HUB_CACHE)


def repository_folder(repo: str) -> Path:
    return cache_folder() / "--".join(("models", *repo.split("/")))


def snapshot_folder(repo: str, commit: str) -> Path:
    return repository_folder(repo) / "snapshots" / commit


def cached_file(repo: str, commit: str, name: str) -> Path | None:
    path = snapshot_folder(repo, commit) / name
    return path if path.is_file() else None


def cached_snapshot(repo: str, revision: str) -> Path | None:
    """The folder of a revision, of which all or a part was downloaded."""
    path = snapshot_folder(repo, _commit_of(repo, revision) or revision)
    return path if path.is_dir() else None


def snapshots(repo: str) -> list[Path]:
    """All that there are, the newest first."""
    newest = _commit_of(repo, "main")
    found = [path for path in (repository_folder(repo) / "snapshots").glob("*") if path.is_dir()]
    return sorted(found, key=lambda path: (path.name != newest, -path.stat().st_mtime))


def files_in(snapshot: Path) -> list[str]:
    """Names of the files, those in its folders as well; a link without a file is none."""
    paths = [path for path in snapshot.rglob("*") if path.is_file()]
    return sorted(path.relative_to(snapshot).as_posix() for path in paths)


class HubFile(Struct, frozen=True):
    repo: str
    commit: str
    name: str
    size: int
    sha256: str | None  # of large files

    @property
    def label(self) -> str:
        return f"{self.repo}/{self.name}"

    def url(self, endpoint: str) -> str:
        return file_url(endpoint, self.repo, self.commit, self.name)

    @property
    def path(self) -> Path:
        """Where it is when it was downloaded."""
        return snapshot_folder(self.repo, self.commit) / self.name

    @property
    def unfinished(self) -> Path:
        key = self.sha256 or hashlib.sha256(f"{self.commit}/{self.name}".encode()).hexdigest()
        return repository_folder(self.repo) / "blobs" / f"{key}{_UNFINISHED}"

    @property
    def n_missing(self) -> int:
        """Bytes of it that are to be downloaded."""
        if self.path.is_file() or (self.sha256 and self.blob(self.sha256).is_file()):
            return 0
        there = self.unfinished.stat().st_size if self.unfinished.is_file() else 0
        return max(0, self.size - there)

    def blob(self, key: str) -> Path:
        return repository_folder(self.repo) / "blobs" / key


def check_room(files: Iterable[HubFile]) -> None:
    root = cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    needed, free = sum(file.n_missing for file in files), shutil.disk_usage(root).free
    if free < needed:
        raise NextnError(
            f"{printable_path(root)} has {free / 1e6:,.0f} MB free, {needed / 1e6:,.0f} MB are to "
            "be downloaded into it: make room, or set HF_HOME"
        )


def download_file(
    client: HttpClient, file: HubFile, report: Callable[[int], None] = lambda _n: None
) -> Path:
    """Puts a file into the cache and returns its path there; goes on where an earlier download was
    cut off. `report` is called with the number of bytes that are there; what it raises ends it."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    if file.path.is_file():
        report(file.size)
        return file.path
    part = file.unfinished
    locks = cache_folder() / ".locks" / repository_folder(file.repo).name
    for folder in (part.parent, locks):
        folder.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(locks / f"{part.stem}.lock"):
        blob = file.blob(file.sha256) if file.sha256 else None
        if blob is None or not blob.is_file():
            _fill(client, file, part, report)
            blob = file.blob(_checked_hash(file, part))
            part.replace(blob)
        _link(blob, file.path)
    return file.path


def set_revision(repo: str, revision: str, commit: str) -> None:
    """Notes which commit a branch or tag is at, for those who read the cache without a network."""
    if revision != commit:
        path = repository_folder(repo) / "refs" / revision
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit, encoding="utf-8")


def remove_files(paths: Iterable[Path]) -> None:
    """Removes files of snapshots, and what they link to unless another snapshot has it as well."""
    for path in paths:
        blob = Path(os.path.normpath(path.parent / path.readlink())) if path.is_symlink() else None
        path.unlink(missing_ok=True)
        repository = _repository_of(path)
        if blob is not None and blob.parent == repository / "blobs":
            links = [each for each in (repository / "snapshots").rglob("*") if each.is_symlink()]
            if blob.name not in {Path(os.readlink(each)).name for each in links}:
                blob.unlink(missing_ok=True)


def remove_unfinished(file: HubFile) -> None:
    file.unfinished.unlink(missing_ok=True)


def _fill(client: HttpClient, file: HubFile, part: Path, report: Callable[[int], None]) -> None:
    with part.open("ab") as out:
        if out.tell() > file.size:
            out.truncate(0)
        at = out.tell()
        report(at)
        for piece in _pieces(client, file, at):
            out.write(piece)
            at += len(piece)
            report(at)
        out.flush()
        os.fsync(out.fileno())


def _pieces(client: HttpClient, file: HubFile, at: int) -> Iterator[bytes | bytearray]:
    """What is behind the first `at` bytes, in order; of a large file several requests at once."""
    url, starts = file.url(client.endpoint), range(at, file.size, _REQUEST)
    if len(starts) < _AT_ONCE:
        yield from client.stream(url, at, file.size, file.size, file.label)
        return
    is_over, twins = Event(), [client.twin() for _ in range(_AT_ONCE)]

    def read(twin: HttpClient, start: int) -> bytearray:
        found, stop = bytearray(), min(start + _REQUEST, file.size)
        for piece in twin.stream(url, start, stop, file.size, file.label):
            if is_over.is_set():
                break
            found += piece
        return found

    ahead: deque[Future[bytearray]] = deque()
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                for i, start in enumerate(starts):
                    if len(ahead) == _AT_ONCE:
                        yield ahead.popleft().result()  # its twin is free now
                    ahead.append(pool.submit(read, twins[i % _AT_ONCE], start))
                while ahead:
                    yield ahead.popleft().result()
            finally:
                is_over.set()
    finally:
        for twin in twins:
            twin.close()


def _checked_hash(file: HubFile, part: Path) -> str:
    """Of a large file its sha256, of others that of git, which is what the hub calls them."""
    with part.open("rb") as read:
        if file.sha256 is None:
            start = f"blob {file.size}\0".encode()
            return hashlib.sha1(start + read.read(), usedforsecurity=False).hexdigest()
        found = hashlib.file_digest(read, "sha256").hexdigest()
    if found != file.sha256:
        part.unlink()
        raise RemoteError(
            f"{file.label}: what arrived has another sha256 than the server says; it was removed, "
            "try again"
        )
    return found


def _link(blob: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()  # to what is gone
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except FileExistsError:
        pass
    except OSError:  # where there are no links, the hub's own tools have the file itself there
        blob.replace(path)


def _repository_of(path: Path) -> Path:
    return next(each.parent for each in path.parents if each.name == "snapshots")


def _commit_of(repo: str, revision: str) -> str | None:
    named = repository_folder(repo) / "refs" / revision
    return named.read_text(encoding="utf-8").strip() if named.is_file() else None
