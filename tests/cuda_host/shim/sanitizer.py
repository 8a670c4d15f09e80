"""AddressSanitizer around kernels: how a Python that loads such libraries has to be started."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

from . import build

SANITIZE = "SHIM_SANITIZE"  # in the environment: launchers build with AddressSanitizer
OPTIONS = (
    "detect_leaks=0:"  # Python leaves much behind at its end
    "halt_on_error=0:suppress_equal_pcs=0:"  # a report fails the launch, not the process
    "detect_stack_use_after_return=0"  # fibers come with stacks of their own
)


def is_wanted() -> bool:
    return os.environ.get(SANITIZE) == "1"


@cache
def unavailable_reason() -> str | None:
    if reason := build.unavailable_reason():
        return reason
    return None if _library() else "there is no libasan beside the C++ compiler"


def environment() -> dict[str, str]:
    """Of a process in which sanitized libraries can be loaded: libasan has to come before all."""
    return {
        **os.environ,
        SANITIZE: "1",
        "LD_PRELOAD": str(_library()),
        "ASAN_OPTIONS": OPTIONS,
    }


@cache
def _library() -> Path | None:
    command = [str(build.compiler()), "-print-file-name=libasan.so"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return path.resolve() if path.is_absolute() else None  # a name alone: not found


def shortened(report: str) -> str:
    """What it was and where in the source, without addresses and pictures of memory."""
    head = re.search(r"AddressSanitizer: ([\w-]+)", report)
    if head is None:
        return report
    kind = re.search(r"^(READ|WRITE) of size \d+", report, re.MULTILINE)
    frames = re.findall(r"#\d+ \S+ in (.+) (/\S+:\d+)", report.partition("SUMMARY:")[0])
    own = [f"{name} ({Path(place).name})" for name, place in frames if "/shim/" not in place]
    where = re.findall(r"is located .+", report)
    lines = [
        f"AddressSanitizer: {head[1]}{', ' + kind[0] if kind else ''}",
        *(f"in {frame}" for frame in own[:6]),
        *(re.sub(r"\s*[[(]0x[^])]*[])]", "", line) for line in where),
    ]
    return "\n    ".join(lines)
