"""Kernels compiled to be watched: for accesses beyond arrays (AddressSanitizer, which a process has
to be started with) and for races."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from . import build

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
N_PARTS = 3  # of the tests of kernels: each is run by a process of its own
MODE = "SHIM_MODE"  # in the environment: `addresses` or `races`, for all launchers
OPTIONS = (
    "detect_leaks=0:"  # Python leaves much behind at its end
    "halt_on_error=0:suppress_equal_pcs=0:"  # a report fails the launch, not the process
    "detect_stack_use_after_return=0"  # fibers come with stacks of their own
)


def wanted() -> build.Mode:
    """What this process is there for."""
    name = os.environ.get(MODE, "plain")
    if name not in build.SOURCE_FLAGS:
        raise ValueError(f"{MODE}={name}: there are {', '.join(build.SOURCE_FLAGS)}")
    return name


def is_wanted() -> bool:
    """Whether kernels are watched, and so slow that a test may be content with less."""
    return wanted() != "plain"


@cache
def unavailable_reason() -> str | None:
    if reason := build.unavailable_reason():
        return reason
    return None if _library() else "there is no libasan beside the C++ compiler"


def environment() -> dict[str, str]:
    """Of a process in which sanitized libraries can be loaded: libasan has to come before all."""
    return {
        **os.environ,
        MODE: "addresses",
        "LD_PRELOAD": str(_library()),
        "ASAN_OPTIONS": OPTIONS,
    }


def run_tests(part: int, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Every N_PARTS-th file of kernel tests, in a process with this environment."""
    files = sorted(str(path) for path in (ROOT / "tests" / "cuda_kernels").glob("test_*.py"))
    options = ("-m", "pytest", "-n", "0", "-q", "--tb=short", "-p", "no:cacheprovider")
    return run([*options, *files[part::N_PARTS]], env, timeout=1500)


def run(
    arguments: Sequence[str], env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@cache
def _library() -> Path | None:
    command = [str(build.compiler()), "-print-file-name=libasan.so"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return path.resolve() if path.is_absolute() else None  # a name alone: not found


def with_lines(report: str, library: Path) -> str:
    """`{0x1f0}`, a place in the library, becomes the line of the source."""
    tool = shutil.which("addr2line")
    if tool is None:
        return report

    def line(match: re.Match[str]) -> str:
        address = hex(int(match[1], 16) - 1)  # the call, not where it returns to
        command = [tool, "-i", "-e", str(library), address]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        places = [place.partition(" ")[0] for place in done.stdout.splitlines()] or [match[1]]
        own = [place for place in places if f"/{HERE.name}/" not in place]
        return Path((own or places)[0]).name

    return re.sub(r"\{(0x[0-9a-f]+)\}", line, report)


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
