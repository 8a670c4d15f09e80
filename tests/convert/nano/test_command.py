"""The recipe as a command: faults end in one line, before an hour of training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nextn.convert.nano import command
from nextn.convert.nano.one_line_errors import in_one_line
from nextn.core.errors import ConfigError


def run(*words: str) -> subprocess.CompletedProcess[str]:
    made = [sys.executable, "-m", "nextn.convert.nano", *words]
    return subprocess.run(made, capture_output=True, text=True, check=False)


def test_a_folder_without_sources_is_one_line(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "x.gguf"), "--library", str(tmp_path))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "no sources to train on; give lib/pythonX.Y as --library" in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "must be above 0"),
        (["--tokens", "-3"], "must be above 0"),
        (["--type", "Q4_0"], "invalid choice"),
        (["--rows", "x"], "invalid"),
    ],
)
def test_flags_are_checked_first(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.parse(["--out", "x.gguf", *words])
    assert message in capsys.readouterr().err


def test_a_folder_to_write_to_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        command.main(["--out", str(tmp_path)])


def _without_torch() -> None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


def _interrupted() -> None:
    raise KeyboardInterrupt


def _wrong() -> None:
    raise ConfigError("something is wrong")


@pytest.mark.parametrize(
    ("work", "code", "message"),
    [
        (_without_torch, 1, "pip install 'nextn[train]'"),
        (_interrupted, 130, "goes on from its last checkpoint"),
        (_wrong, 1, "error: something is wrong"),
    ],
)
def test_failures_are_one_line(
    work: object, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        in_one_line("program", work)  # type: ignore[arg-type]
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        in_one_line("program", _bug)


def _bug() -> None:
    raise ModuleNotFoundError("elsewhere", name="elsewhere")
