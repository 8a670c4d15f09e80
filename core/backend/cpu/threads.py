"""How many threads to use: physical cores, less what affinity and a cgroup quota take away."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def default_threads() -> int:
    found = [physical_cores(), _affinity(), _cgroup_quota()]
    return max(1, min(n for n in found if n))


def usable_threads(wanted: int | None) -> int | None:
    """No more than the processors that this process may use: threads that wait for each other at
    every kernel of a step are many times slower when they share a processor."""
    most = min(n for n in (_affinity(), _cgroup_quota(), wanted) if n is not None)
    if wanted is None or most == wanted:
        return wanted
    logger.warning(
        "%d threads: this process may use %d processors; it runs %d threads", wanted, most, most
    )
    return most


@contextmanager
def spread(thread_ids: Iterable[int | None]) -> Iterator[None]:
    """Let threads run on processors of their own, other than the caller's, for a moment: a system
    that finds all processors busy wakes them on the caller's, and takes long to move them."""
    before = {}
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError, AttributeError):  # it is a matter of speed alone
            here = ctypes.CDLL(None).sched_getcpu()
            others = sorted(os.sched_getaffinity(0) - {here})
            for thread_id, cpu in zip(thread_ids, others, strict=False):
                if thread_id is not None:
                    before[thread_id] = os.sched_getaffinity(thread_id)
                    os.sched_setaffinity(thread_id, {cpu})
    try:
        yield
    finally:
        for thread_id, allowed in before.items():
            with suppress(OSError):
                os.sched_setaffinity(thread_id, allowed)


def physical_cores() -> int | None:
    """Distinct (package, core) pairs; None where the system does not say."""
    cores = set()
    for cpu in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        try:
            cores.add((_read(cpu / "physical_package_id"), _read(cpu / "core_id")))
        except OSError:
            return os.cpu_count()
    return len(cores) or os.cpu_count()


def _affinity() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cgroup_quota() -> int | None:
    """Whole processors that the groups of this process may use: its own, and those above."""
    quotas = [quota for folder in _cgroups() if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _cgroups() -> list[Path]:
    """Of both versions. Within a container the path may be one of the machine outside: the root
    is then the container's own."""
    folders = [_CGROUPS, _CGROUPS / "cpu"]
    with suppress(OSError, ValueError):
        for line in _read(_OWN_CGROUPS).splitlines():
            _, controllers, path = line.split(":", 2)
            root = _CGROUPS / "cpu" if controllers else _CGROUPS
            if not controllers or "cpu" in controllers.split(","):
                own = root / path.lstrip("/")
                folders += [own, *(each for each in own.parents if root in each.parents)]
    return folders


def _quota_of(folder: Path) -> int | None:
    with suppress(OSError, ValueError):
        quota, period = _read(folder / "cpu.max").split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    with suppress(OSError, ValueError):
        quota = _read(folder / "cpu.cfs_quota_us")
        period = _read(folder / "cpu.cfs_period_us")
        return None if int(quota) < 0 else max(1, int(quota) // int(period))
    return None


def _read(path: Path) -> str:
    return path.read_text().strip()
