"""How much memory this process may still take. The POSIX-only part of `state`.

A container's limit counts as much as the machine's memory: a process that exceeds it is killed.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
# v1 writes "no limit" as a number near 2^63.
_UNLIMITED = 1 << 60
_MMAP_THRESHOLD = -3  # as glibc's malloc.h has it
_LARGE = 1 << 20  # bytes


def available_memory() -> int | None:
    """Bytes; None where the system has no such number."""
    known = [size for size in (_machine(), _cgroup()) if size is not None]
    return min(known) if known else None


def give_back() -> None:
    """What was freed goes to the system, now and whenever a large block is freed from now on.

    glibc raises its own limit, up to 32 MB: then some memory stays each time that a model is
    loaded, and memory that is to be zero has to be written.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.malloc_trim(0)


def _machine() -> int | None:
    """Free memory, and caches that would be given up for us."""
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return _sysconf("SC_AVPHYS_PAGES", "SC_PHYS_PAGES")


def _sysconf(*names: str) -> int | None:
    for name in names:
        try:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            continue
    return None


def _cgroup() -> int | None:
    """What the tightest of our control groups leaves, version 2 or 1."""
    left = [size for folder in _group_folders() if (size := _left_in(folder)) is not None]
    return min(left) if left else None


def _group_folders() -> list[Path]:
    folders = [_CGROUP, _CGROUP / "memory"]
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUP / "memory" if controllers else _CGROUP
        group = root / path.lstrip("/")
        # A parent's limit binds as well.
        folders += [group, *(p for p in group.parents if p.is_relative_to(root) and p != root)]
    return folders


def _left_in(folder: Path) -> int | None:
    for limit_file, used_file, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        try:
            limit = int((folder / limit_file).read_text())  # "max" is no number: no limit here
            used = int((folder / used_file).read_text())
        except (OSError, ValueError):
            continue
        if limit < _UNLIMITED:
            return max(0, limit - used + _reclaimable(folder / "memory.stat", prefix))
    return None


def _reclaimable(stat: Path, prefix: str) -> int:
    """File pages that count as used, but go first: a model file that was read twice is active."""
    try:
        fields = dict(line.split() for line in stat.read_text().splitlines())
        return sum(int(fields.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
    except (OSError, ValueError):
        return 0
