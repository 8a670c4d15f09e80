"""Running `spec` as people do: as a process with its own streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

FAKE = [sys.executable, str(Path(__file__).with_name("fake_spec.py"))]
REAL = [sys.executable, "-c", "from specdec.cli.start import main; main()"]


def environment(script: dict[str, Any], extra: dict[str, str]) -> dict[str, str]:
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in {"NO_COLOR", "TERM", "SPEC_DEBUG", "PYTHONIOENCODING", "COLUMNS"}
    }
    return plain | {"TERM": "xterm", "SCRIPT": json.dumps(script)} | extra


@pytest.fixture
def fake_command() -> list[str]:
    return FAKE


@pytest.fixture
def fake_environment() -> Callable[..., dict[str, str]]:
    return lambda script, **extra: environment(script, extra)


def runner(command: list[str]) -> Run:
    def run(
        *args: str, stdin: str | bytes = "", script: dict[str, Any] | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*command, *args],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=environment(script or {}, extra),
            timeout=60,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run


@pytest.fixture
def spec() -> Run:
    """`spec` on the scripted model of fake_spec.py."""
    return runner(FAKE)


@pytest.fixture
def real_spec() -> Run:
    return runner(REAL)
