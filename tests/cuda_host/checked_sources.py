"""Tests of CUDA take minutes: they run where what they test has changed, and under `make test-all`.

`make check-kernels` and `make check-cuda` run them and note the digest of what passed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from shim import sanitizer
from shim.machine import host_problem
from support.sass import disassembler

from nextn.cuda_kernels.compile import nvrtc_problem
from nextn.cuda_kernels.kernel import FOLDER
from nextn.cuda_kernels.table import BEGIN

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BACKENDS = ROOT / "core" / "backend"
BACKEND_TESTS = ("core/backend/cuda", "core/ranks", "bench/gpu")
CHANGED: Final = "SPEC_TEST_CUDA"  # set: all of these tests run


def _files(place: Path) -> Iterator[Path]:
    found = place.rglob("*") if place.is_dir() else [place]
    return (path for path in found if path.is_file() and "__pycache__" not in path.parts)


@dataclass
class CheckedSources:
    noted: Path  # the digest of what passed
    places: Sequence[Path]  # files, and folders with all below but for Python's cache
    tests: Sequence[str]
    covers_all: bool  # all cases of these tests, or those of CI

    def digest(self) -> str:
        """Of the files, and of the table of all kernels."""
        found = hashlib.sha256()
        for place in self.places:
            for path in sorted(_files(place)):
                found.update(path.relative_to(place.parent).as_posix().encode() + b"\0")
                found.update(path.read_bytes())
        page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
        found.update(page.partition(BEGIN)[2].encode())
        return found.hexdigest()

    @property
    def have_changed(self) -> bool:
        if CHANGED in os.environ or not self.noted.exists():
            return True
        return self.noted.read_text(encoding="ascii").strip() != self.digest()

    @property
    def mark(self) -> pytest.MarkDecorator:
        """Of tests that run where the sources have changed."""
        return pytest.mark.slow if self.have_changed else pytest.mark.exhaustive

    def check(self) -> int:
        """Run the tests; the exit code."""
        if lacks := problem():
            sys.stderr.write(f"the CUDA sources cannot be checked here: {lacks}\n")
            return 1
        before = self.digest()
        tests = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu and not timing", *self.tests]
        env = os.environ | {CHANGED: "1"} | ({"SPEC_TEST_ALL": "1"} if self.covers_all else {})
        code = subprocess.run(tests, cwd=ROOT, env=env, check=False).returncode
        if code == 0:
            self.noted.write_text(before + "\n", encoding="ascii")
        return code


KERNELS: Final = CheckedSources(
    HERE / "checked_kernels.txt",
    (FOLDER, HERE / "shim"),
    ("tests/cuda_host", "tests/cuda_kernels"),
    covers_all=True,
)
# The backend, the models that it runs, and the tests themselves: their references.
BACKEND: Final = CheckedSources(
    HERE / "checked_backend.txt",
    (
        *KERNELS.places,
        *(ROOT / "core" / name for name in ("models", "ranks")),
        *(BACKENDS / name for name in ("cuda", "interface", "reference")),
        *sorted(BACKENDS.glob("*.py")),
        *(ROOT / "tests" / name for name in BACKEND_TESTS),
    ),
    [f"tests/{name}" for name in BACKEND_TESTS],
    covers_all=False,
)
ALL: Final = {"kernels": KERNELS, "backend": BACKEND}
if_kernels_changed, if_backend_changed = KERNELS.mark, BACKEND.mark


def problem() -> str | None:
    """Why tests would be skipped here: then nothing is noted."""
    problems = (host_problem(), sanitizer.unavailable_reason(), nvrtc_problem())
    lacking = [problem for problem in problems if problem]
    if disassembler() is None:
        lacking.append("nvidia-cuda-nvdisasm is not installed")
    return lacking[0] if lacking else None


if __name__ == "__main__":
    sys.exit(ALL[sys.argv[1]].check())
