"""Running `spec`: as people do, as a process with its own streams, or in this one.

A start takes a quarter of a second of a processor. So tests that are about what is said and done
run it here; those about streams, signals, encodings, tracebacks and what is imported do not.
"""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support import fake_spec

from nextn import core
from nextn.cli import app

Run = Callable[..., subprocess.CompletedProcess[str]]

FAKE = [sys.executable, fake_spec.__file__]
REAL = [sys.executable, "-c", "from nextn.cli.start import main; main()"]
LEFT_OUT = frozenset({"NO_COLOR", "TERM", "SPEC_DEBUG", "PYTHONIOENCODING", "COLUMNS"})
TIME_LIMIT = 60


def environment(script: dict[str, Any], extra: dict[str, str]) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
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
            input=as_bytes(stdin),
            capture_output=True,
            env=environment(script or {}, extra),
            timeout=TIME_LIMIT,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run


def run_here(
    *args: str, stdin: str | bytes = "", script: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same without a process, with pipes in memory. `script` None: with a real model."""
    streams = {"stdin": piped(as_bytes(stdin)), "stdout": piped(), "stderr": piped()}
    streams["stderr"].reconfigure(errors="backslashreplace")  # as Python's own
    with pytest.MonkeyPatch.context() as patch:
        for name in LEFT_OUT:
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm")
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        patch.setattr(logging.getLogger("nextn"), "handlers", [])
        if script is not None:
            patch.setattr(fake_spec, "SCRIPT", script)
            patch.setattr(core, "load", fake_spec.fake_load)
        code = app.run(list(args))
    said = [streams[name].buffer.getvalue().decode() for name in ("stdout", "stderr")]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(args, code, *said)


def piped(data: bytes = b"") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", write_through=True)


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


@pytest.fixture
def spec() -> Run:
    """`spec` on the scripted model of fake_spec.py."""
    return lambda *args, script=None, **more: run_here(*args, script=script or {}, **more)


@pytest.fixture
def spec_process() -> Run:
    """The same as a process; more arguments by name are its environment."""
    return runner(FAKE)


@pytest.fixture
def real_spec() -> Run:
    """`spec` as a process."""
    return runner(REAL)


@pytest.fixture
def real_spec_here() -> Run:
    return run_here
