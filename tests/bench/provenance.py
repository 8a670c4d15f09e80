"""Where a record comes from: without that its figures mean nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nextn.core.backend.cpu.backend import CpuBackend

PACKAGES = ("llvmlite", "numpy", "xllamacpp")


def provenance(threads: int, sections: list[str]) -> dict[str, Any]:
    """Call it before anything is measured: the load average should be that of an idle machine."""
    import xllamacpp

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "sections": sections,
        "threads": threads,
        "cpu": CpuBackend(threads).details,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average_before": _load_average(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "llama_cpp": str(xllamacpp.BUILD_INFO),
    }


@dataclass(frozen=True)
class Moment:
    """For telling later how long something took, and how much else the machine had to do."""

    clock: float
    own: float  # processor seconds of this process and of its children that have ended
    busy: float | None  # of everybody; None where the system does not tell

    @classmethod
    def now(cls) -> Moment:
        return cls(time.perf_counter(), sum(os.times()[:4]), _busy_seconds())

    def until_now(self) -> dict[str, Any]:
        now = Moment.now()
        others = None
        if self.busy is not None and now.busy is not None:
            others = round(max(0.0, now.busy - self.busy - (now.own - self.own)), 2)
        return {"seconds": round(now.clock - self.clock, 1), "others_cpu_seconds": others}


def _busy_seconds() -> float | None:
    """All that was not idle and not waiting for a disk, stolen time included."""
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _disk, *rest = map(int, words)
    return float(user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def git(*arguments: str) -> str:
    """Nothing where there is no git, or no history."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def _load_average() -> list[float] | None:
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "?")
