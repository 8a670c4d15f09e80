"""Repacked weights kept on disk, for starts that repack nothing and processes that share pages.

An entry is named after the bytes of all tensors, the way the model puts them together, and the
sources that repack: no other file's weights can be found under it. The bytes are hashed when an
entry is made. After that, a note says which bytes a file had that is still the same file (device,
inode, size and both times); what has changed in any of these is hashed again.

Entries appear whole: written beside, flushed, then renamed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import mmap
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from ...gguf.atomic_write import UNFINISHED, appearing
from ...gguf.reader import GgufFile
from ..layers import MatrixPart
from .machine_code import cache_folder
from .memory import Arena, Bytes, padded
from .simd import Simd

logger = logging.getLogger(__name__)

Report = Callable[[str, float], None]
Matrices = Sequence[Sequence[MatrixPart]]

WRITING = "writing repacked weights"
LAYOUT_SOURCES = (
    "tile_matrix.py", "memory.py", "emit.py", "formats/*.py", "kernels/repack_kernel.py",
)  # fmt: skip
ENTRY, NOTE = ".tiles", ".file"
MAGIC = b"spec tiles 1\n"
HEADER_BYTES = 4096  # a page: what follows can be mapped
HASHED_AT_ONCE = 1 << 23
WRITTEN_AT_ONCE = 1 << 26
SPARE_BYTES = 64 << 20  # to be left free on the disk
SETTLED_NS = 2 * 10**9  # a file changed more recently may change again with the same times
ABANDONED_S = 24 * 3600
_GIB = 1 << 30


def repack_folder() -> Path:
    return cache_folder().parent / "repacked"


class RepackCache:
    """The entries of one folder. `find` before repacking, `keep` after it."""

    def __init__(self, n_threads: int, simd: Simd, folder: Path | None = None) -> None:
        self._simd = simd  # which of several layouts a format has, may depend on it
        self.folder = repack_folder() if folder is None else folder
        self._n_threads = n_threads
        self.path = self.folder  # the entry that `find` looked for

    def find(self, file: GgufFile, matrices: Matrices, n_bytes: int) -> MappedTiles | None:
        content = self._content(file)
        kinds = f"{sys.byteorder} {self._simd.looks_up}"
        key = _digest(content, _plan(matrices), _layout(), kinds)
        self.path = self.folder / f"{content[:20]}-{key[:40]}{ENTRY}"
        try:
            return MappedTiles(self.path, n_bytes)
        except (OSError, ValueError):
            return None

    def keep(self, file: GgufFile, arena: Arena, report: Report) -> Path | None:
        """Best effort: that it could not be kept is said, and the model runs all the same."""
        try:
            self._write(file, arena.vocab_subset(), report)
        except OSError as error:
            reason = error.strerror or str(error)
            logger.warning("repacked weights are not kept: %s: %s", self.folder, reason)
            return None
        return self.path

    def _write(self, file: GgufFile, tiles: Bytes, report: Report) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._clean()
        free = shutil.disk_usage(self.folder).free
        if free < len(tiles) + SPARE_BYTES:
            sizes = f"{len(tiles) / _GIB:.2f} GiB are needed, {free / _GIB:.2f} GiB are free"
            raise OSError(errno.ENOSPC, sizes)
        if not file.is_unchanged():  # what was hashed may not be what was repacked
            raise OSError(errno.EBUSY, f"{file.label} was changed meanwhile")
        with appearing(self.path) as out:
            out.write(_header(len(tiles)))
            for at in range(0, len(tiles), WRITTEN_AT_ONCE):
                report(WRITING, at / len(tiles))
                out.write(tiles[at : at + WRITTEN_AT_ONCE].data)
            report(WRITING, 1.0)

    def _content(self, file: GgufFile) -> str:
        """A digest of all tensor bytes, from the note if the file is the one it speaks of."""
        note = self.folder / f"{_digest(json.dumps(file.identities))[:40]}{NOTE}"
        with suppress(OSError, ValueError):
            if found := re.fullmatch(r"[0-9a-f]{64}", note.read_text()):
                return found[0]
        began = time.time_ns()
        content = _hash_tensors(file, self._n_threads)
        changed = max(max(each.mtime_ns, each.ctime_ns) for each in file.identities)
        if changed + SETTLED_NS < began and file.is_unchanged():
            with suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                with appearing(note) as out:
                    out.write(content.encode())
        return content

    def _clean(self) -> None:
        """Entries of these bytes by another version, and what died while it was written."""
        content = self.path.name.partition("-")[0]
        old = [path for path in self.folder.glob(f"{content}-*{ENTRY}") if path != self.path]
        for path in self.folder.glob(f"*{UNFINISHED}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    old.append(path)
        for path in old:
            with suppress(OSError):  # another process may have been quicker
                path.unlink()


class MappedTiles:
    """The tiles of an entry, in the order in which they were made; read-only."""

    is_filled = True

    def __init__(self, path: Path, n_bytes: int) -> None:
        """ValueError if it is not the whole entry."""
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != HEADER_BYTES + n_bytes:
                raise ValueError(path)
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if mapping[:HEADER_BYTES] != _header(n_bytes):
            raise ValueError(path)
        if hasattr(mmap, "MADV_WILLNEED"):
            mapping.madvise(mmap.MADV_WILLNEED)
        self._memory, self._next = np.frombuffer(mapping, np.uint8), HEADER_BYTES

    def take(self, n_bytes: int) -> Bytes:
        start, self._next = self._next, self._next + padded(n_bytes)
        return self._memory[start : start + n_bytes]


def list_entries(folder: Path | None = None) -> list[tuple[Path, int]]:
    """Entries and their bytes."""
    folder = repack_folder() if folder is None else folder
    return [(path, path.stat().st_size) for path in sorted(folder.glob(f"*{ENTRY}"))]


def remove_entries(folder: Path | None = None) -> list[tuple[Path, int]]:
    """All of them, with their notes; returns what there was."""
    folder = repack_folder() if folder is None else folder
    entries = list_entries(folder)
    for kind in (ENTRY, NOTE, UNFINISHED):
        for path in folder.glob(f"*{kind}"):
            path.unlink(missing_ok=True)
    return entries


def _header(n_bytes: int) -> bytes:
    return (MAGIC + f"{n_bytes} bytes\n".encode()).ljust(HEADER_BYTES, b"\0")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _plan(matrices: Matrices) -> str:
    """What is made of which tensors, in what order."""
    digest = hashlib.sha256()
    for parts in matrices:
        digest.update(f"\n{len(parts)} parts".encode())
        for part in parts:
            tensor = part.tensor
            digest.update(f"\n{tensor.name!r} {tensor.shape} {tensor.format.name}".encode())
            for array in (part.row_order, part.scale):
                if array is not None:
                    digest.update(f"\n{array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


@cache
def _layout() -> str:
    """All sources that decide how tiles look."""
    here, gguf = Path(__file__).parent, Path(__file__).parents[2] / "gguf"
    paths = [path for name in LAYOUT_SOURCES for path in sorted(here.glob(name))]
    digest = hashlib.sha256()
    for path in (*paths, *sorted(gguf.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _hash_tensors(file: GgufFile, n_threads: int) -> str:
    """Names, shapes, types and bytes of all tensors; pieces are hashed by several threads."""
    whole = hashlib.sha256()
    with ThreadPoolExecutor(n_threads) as threads:
        for name, tensor in sorted(file.tensors.items()):
            starts = range(0, tensor.n_bytes, HASHED_AT_ONCE)
            pieces = [tensor.data[at : at + HASHED_AT_ONCE] for at in starts]
            whole.update(f"\n{name!r} {tensor.shape} {tensor.format.name}\n".encode())
            for each in threads.map(lambda piece: hashlib.sha256(piece.data).digest(), pieces):
                whole.update(each)
            tensor.release()
    return whole.hexdigest()
