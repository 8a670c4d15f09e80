"""`process_*`: what Prometheus' own clients say of a process, from Linux' /proc; elsewhere less."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from .metric_families import family

_PROC: Final = Path("/proc/self")
_STARTED_AT: Final = time.time() - time.process_time()  # of the import, in case there is no /proc
_START_FIELD, _SIZE_FIELD, _RSS_FIELD = 19, 20, 21  # of `stat`, behind the name


def process_families() -> Iterator[list[str]]:
    text = "Processor time, in user and system mode."
    yield family("process_cpu_seconds_total", "counter", text, time.process_time())
    found: dict[str, tuple[str, float]] = {}
    with suppress(OSError, ValueError, IndexError):
        found |= _memory()
    with suppress(OSError, ValueError):
        found |= _files()
    started = found.pop("start_time_seconds", ("", _STARTED_AT))[1]
    text = "When it began, in seconds since 1970."
    yield family("process_start_time_seconds", "gauge", text, started)
    for name, (text, value) in found.items():
        yield family(f"process_{name}", "gauge", text, value)


def _memory() -> dict[str, tuple[str, float]]:
    # The name may hold spaces and brackets.
    fields = (_PROC / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    boot = next(
        int(line.split()[1])
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()
        if line.startswith("btime ")
    )
    started = boot + int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    resident = int(fields[_RSS_FIELD]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "start_time_seconds": ("", started),
        "virtual_memory_bytes": ("Virtual memory.", int(fields[_SIZE_FIELD])),
        "resident_memory_bytes": ("Memory in use.", resident),
    }


def _files() -> dict[str, tuple[str, float]]:
    import resource  # not on Windows, where there is no /proc either

    n_open = len(os.listdir(_PROC / "fd"))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return {"open_fds": ("Open files.", n_open), "max_fds": ("The most there may be.", limit)}
