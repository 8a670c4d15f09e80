"""Completion of shells: subcommands, flags, and the values of flags that have few."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`spec`, as a program that a shell finds."""
    path = tmp_path_factory.mktemp("bin") / "spec"
    lines = [f"#!{sys.executable}", "from nextn.cli.start import main", "main()"]
    path.write_text("\n".join(lines))
    path.chmod(0o755)
    return path


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("spec gen", "generate"),
        ("spec convert ins", "inspect"),
        ("spec generate --reasoning-b", "--reasoning-budget --reasoning-budget-message"),
        ("spec generate --reasoning o", "on off"),
        ("spec serve --reasoning-format ", ""),
    ],
)
def test_bash(command: Path, line: str, found: str) -> None:
    *words, last = line.split(" ")
    script = (
        'eval "$(_SPEC_COMPLETE=source_bash spec)"\n'
        f"COMP_WORDS=({' '.join(words)} '{last}')\nCOMP_CWORD={len(words)}\n"
        '_spec_completion spec\necho "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(BASH), "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == found, done.stderr
    assert "Traceback" not in done.stderr


def test_other_shells_get_a_script(command: Path) -> None:
    for shell in ("zsh", "fish"):
        environment = os.environ | {"_SPEC_COMPLETE": f"source_{shell}"}
        done = subprocess.run(
            [command], env=environment, capture_output=True, text=True, check=True
        )
        assert "spec" in done.stdout
