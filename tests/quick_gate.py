"""`make quick`: what a commit must pass. Lint, format and types of the whole tree; the rules of the
house; pages and tables against what makes them; and the tests of the modules that the change
touches, found by their names, as tests mirror the folders."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "convert", "core", "cuda_kernels")
# Rules of the house, and what is made from the code.
ALWAYS = (
    "tests/test_layout.py", "tests/test_names.py", "tests/test_quick_gate.py",
    "tests/lib/test_models_page.py", "tests/cli/test_help_page.py",
    "tests/cuda_kernels/test_table.py",
)  # fmt: skip
MOST_FILES = 12  # more are a matter for `make check`


def changed_files() -> list[PurePath]:
    """Paths that differ from the last commit, without those that are gone."""
    command = ["git", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [PurePath(entry[3:]) for entry in listed.split("\0") if entry]
    return [path for path in paths if (ROOT / path).is_file()]


def tests_of(path: PurePath, known: Iterable[str]) -> list[str]:
    """Of core/server/chat.py: tests/core/server/test_chat.py, and test_chat_….py beside it."""
    if path.suffix != ".py":
        return []
    if path.parts[0] == "tests":
        return [path.as_posix()] if path.name.startswith("test_") else []
    if path.parts[0] not in FOLDERS:
        return []
    own = (PurePath("tests") / path).with_name(f"test_{path.stem}")
    return [name for name in known if name == f"{own}.py" or name.startswith(f"{own.as_posix()}_")]


def chosen_tests(changed: Sequence[PurePath], known: Sequence[str]) -> list[str]:
    found = dict.fromkeys(ALWAYS)
    found |= dict.fromkeys(name for path in changed for name in tests_of(path, known))
    return list(found)[: len(ALWAYS) + MOST_FILES]


def missing_tools() -> list[str]:
    return [name for name in ("ruff", "mypy", "pytest") if find_spec(name) is None]


def main() -> int:
    if missing := missing_tools():
        sys.stderr.write(f"not installed here: {', '.join(missing)}; run: make setup\n")
        return 1
    known = sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")
    )
    changed = changed_files()
    tests = chosen_tests(changed, known)
    if len(tests) == len(ALWAYS) + MOST_FILES:
        sys.stderr.write("a large change: not all tests of what it touches are run; `make check`\n")
    python = (sys.executable, "-m")
    for words in (
        (*python, "ruff", "check", "-q", "."),
        (*python, "ruff", "format", "-q", "--check", "."),
        (*python, "mypy", "--no-error-summary"),
        (*python, "pytest", "-q", *tests),
    ):
        began = time.perf_counter()
        code = subprocess.run(words, cwd=ROOT, check=False).returncode
        sys.stderr.write(f"{words[2]}: {time.perf_counter() - began:.1f} s\n")
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
