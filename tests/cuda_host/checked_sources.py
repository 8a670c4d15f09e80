"""Tests that compile all CUDA sources take minutes: they run where the sources have changed, and
under `make test-all`. `make check-kernels` runs them and notes the digest of what passed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nextn.cuda_kernels.kernel import FOLDER

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NOTED = HERE / "checked_sources.txt"
TESTS = ("tests/cuda_host", "tests/cuda_kernels")


def digest() -> str:
    """Of the kernels, what launches them, the shim, and the page about them."""
    folders = (FOLDER, FOLDER / "include", HERE / "shim")
    files = sorted(path for folder in folders for path in folder.iterdir() if path.is_file())
    files.append(ROOT / "docs" / "kernels.md")
    found = hashlib.sha256()
    for path in files:
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def main() -> int:
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu and not timing", *TESTS]
    env = os.environ | {"SPEC_TEST_ALL": "1"}
    code = subprocess.run(tests, cwd=ROOT, env=env, check=False).returncode
    if code == 0:
        NOTED.write_text(digest() + "\n", encoding="ascii")
    return code


def have_changed() -> bool:
    return not NOTED.exists() or NOTED.read_text(encoding="ascii").strip() != digest()


if_sources_changed = pytest.mark.slow if have_changed() else pytest.mark.exhaustive

if __name__ == "__main__":
    sys.exit(main())
