"""Tests that compile all CUDA sources take minutes: they run where the sources have changed, and
under `make test-all`. `make check-kernels` runs them and notes the digest of what passed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shim import sanitizer
from shim.machine import host_problem
from support.sass import disassembler

from nextn.cuda_kernels.compile import nvrtc_problem
from nextn.cuda_kernels.kernel import FOLDER
from nextn.cuda_kernels.table import BEGIN

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NOTED = HERE / "checked_sources.txt"
TESTS = ("tests/cuda_host", "tests/cuda_kernels")


def digest() -> str:
    """Of the kernels, what launches them, the shim, and the table of them all."""
    folders = (FOLDER, FOLDER / "include", HERE / "shim")
    files = sorted(path for folder in folders for path in folder.iterdir() if path.is_file())
    found = hashlib.sha256()
    for path in files:
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    found.update(page.partition(BEGIN)[2].encode())
    return found.hexdigest()


def problem() -> str | None:
    """Why tests would be skipped here: then nothing is noted."""
    problems = (host_problem(), sanitizer.unavailable_reason(), nvrtc_problem())
    lacking = [problem for problem in problems if problem]
    if disassembler() is None:
        lacking.append("nvidia-cuda-nvdisasm is not installed")
    return lacking[0] if lacking else None


def main() -> int:
    if lacks := problem():
        sys.stderr.write(f"the CUDA sources cannot be checked here: {lacks}\n")
        return 1
    before = digest()
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu and not timing", *TESTS]
    env = os.environ | {"SPEC_TEST_ALL": "1"}
    code = subprocess.run(tests, cwd=ROOT, env=env, check=False).returncode
    if code == 0:
        NOTED.write_text(before + "\n", encoding="ascii")
    return code


def have_changed() -> bool:
    return not NOTED.exists() or NOTED.read_text(encoding="ascii").strip() != digest()


if_sources_changed = pytest.mark.slow if have_changed() else pytest.mark.exhaustive

if __name__ == "__main__":
    sys.exit(main())
