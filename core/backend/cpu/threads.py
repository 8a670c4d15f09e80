"""How many threads to use: physical cores, less what affinity and a cgroup quota take away."""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)


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
    """Whole cores that a container may use."""
    try:
        quota, period = _read(Path("/sys/fs/cgroup/cpu.max")).split()
        if quota != "max":
            return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        pass
    return None


def _read(path: Path) -> str:
    return path.read_text().strip()
