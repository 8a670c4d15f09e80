"""Compiled kernels between runs: one file for each source and architecture.

A file that is cut short, damaged or not ours is nothing but a reason to compile again, and so is a
folder that cannot be read or written.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"nextn cubin 1\n"
DIGEST = 32


@dataclass(frozen=True, slots=True)
class Entry:
    log: str  # of the compiler
    image: bytes


class CubinCache:
    """`folder` None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        return self.folder is not None and (self.folder / name).is_file()

    def read(self, name: str) -> Entry | None:
        if self.folder is None:
            return None
        try:
            data = (self.folder / name).read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + DIGEST
        digest, body = data[len(MAGIC) : start], data[start:]
        if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
            return None
        size = int.from_bytes(body[:4], "little")
        return Entry(body[4 : 4 + size].decode(), body[4 + size :])

    def write(self, name: str, entry: Entry) -> None:
        """Beside its place, then renamed: readers and other writers see whole files."""
        if self.folder is None:
            return
        log = entry.log.encode()
        body = len(log).to_bytes(4, "little") + log + entry.image
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._put(self.folder, name, MAGIC + hashlib.sha256(body).digest() + body)

    def _put(self, folder: Path, name: str, data: bytes) -> None:
        handle, beside = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(beside, folder / name)
        except OSError:
            with suppress(OSError):
                os.unlink(beside)
            raise


def default_folder() -> Path:
    """In the same place as the other caches (core's `folders.py`, which is not ours to import)."""
    root = os.environ.get("SPEC_CACHE_DIR")
    if root:
        return Path(root) / "cubins"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "nextn" / "cubins"
