"""`--log-file`: what stderr says is in the file as well."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_lines_and_the_error_are_in_the_file(
    spec: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "spec.log"
    log.write_text("of an earlier run\n")
    done = spec("generate", "-m", "m.gguf", "-p", "hi", "-v", "--log-file", str(log), "--mlock")
    assert done.returncode == 0
    assert log.read_text() == done.stderr
    assert "--mlock has no effect" in log.read_text()
    monkeypatch.setenv("LLAMA_ARG_LOG_FILE", str(log))
    failed = spec("generate", "-m", "m.gguf", "-f", "missing.txt")
    assert failed.returncode == 1
    assert log.read_text() == failed.stderr == "spec: error: no such file: missing.txt\n"
    monkeypatch.delenv("LLAMA_ARG_LOG_FILE")
    spec("generate", "-m", "m.gguf", "-f", "missing.txt")
    assert log.read_text() == failed.stderr


def test_a_file_that_cannot_be_written(spec: Run, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none" / "x.log", "no such file"),
        (tmp_path, "is a directory, not a file"),
    ):
        done = spec("generate", "-m", "m.gguf", "-p", "hi", "--log-file", str(path))
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
