"""What backends keep between runs and can make again: it takes room, and may be removed at will.

A process that has loaded some of it keeps that until it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct


class Removed(Struct, frozen=True):
    what: str
    n_files: int
    n_bytes: int
    folder: Path


def remove_kept() -> Iterator[Removed]:
    """One kind at a time, even where there was nothing of it."""
    from .cpu.machine_code import cache_folder
    from .cpu.repacked import remove_entries, repack_folder
    from .cuda import cubin_folder

    yield _remove("compiled kernels of cpu", cache_folder(), ".o")
    yield _remove("compiled kernels of cuda", cubin_folder(), ".cubin")
    sizes = [size for _, size in remove_entries()]
    yield Removed("repacked weights", len(sizes), sum(sizes), repack_folder())


def _remove(what: str, folder: Path, kind: str) -> Removed:
    """With what died while it was written: both caches write beside, under a name of Python's."""
    n_bytes = n_files = 0
    for path in sorted([*folder.glob(f"*{kind}"), *folder.glob("tmp*")]):
        with suppress(FileNotFoundError):  # another process was quicker
            n = path.stat().st_size
            path.unlink()
            n_bytes, n_files = n_bytes + n, n_files + (path.suffix == kind)
    return Removed(what, n_files, n_bytes, folder)
