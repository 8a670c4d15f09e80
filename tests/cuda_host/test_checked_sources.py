"""Which tests of CUDA sources CI leaves out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import checked_sources
import pytest
from shim import sanitizer


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "noted.txt"
    monkeypatch.setattr(checked_sources, "NOTED", path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of CUDA sources."""
    path = tmp_path / "kernels"
    (path / "include").mkdir(parents=True)
    (path / "a.cu").write_text("one")
    monkeypatch.setattr(checked_sources, "FOLDER", path)
    return path


def test_a_source_that_changes_is_noticed(noted: Path, folder: Path) -> None:
    assert checked_sources.have_changed()
    noted.write_text(checked_sources.digest() + "\n")
    assert not checked_sources.have_changed()
    (folder / "a.cu").write_text("two")
    assert checked_sources.have_changed()


@pytest.mark.parametrize("code", [0, 1])
def test_only_what_passed_is_noted(
    noted: Path, folder: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was when the tests began."""
    before = checked_sources.digest()

    def edit(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        (folder / "a.cu").write_text("edited meanwhile")
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(checked_sources, "problem", lambda: None)
    monkeypatch.setattr(subprocess, "run", edit)
    assert checked_sources.main() == code
    assert noted.exists() == (code == 0)
    assert code or noted.read_text().strip() == before


def test_nothing_is_noted_where_tests_would_be_skipped(
    noted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checked_sources, "nvrtc_problem", lambda: "NVRTC is not installed")
    monkeypatch.setattr(checked_sources, "host_problem", lambda: None)
    monkeypatch.setattr(sanitizer, "unavailable_reason", lambda: None)
    assert checked_sources.main() == 1
    shown = capsys.readouterr().err
    assert shown == "the CUDA sources cannot be checked here: NVRTC is not installed\n"
    assert not noted.exists()
