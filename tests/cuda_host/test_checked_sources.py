"""Which tests of CUDA sources CI leaves out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import checked_sources
import pytest
from checked_sources import CheckedSources
from shim import sanitizer


@pytest.fixture
def sources(tmp_path: Path) -> CheckedSources:
    """A folder and a file."""
    folder, file = tmp_path / "kernels", tmp_path / "launch.py"
    (folder / "include" / "__pycache__").mkdir(parents=True)
    (folder / "a.cu").write_text("one")
    file.write_text("two")
    return CheckedSources(tmp_path / "noted.txt", (folder, file), ("tests",), covers_all=True)


@pytest.fixture(autouse=True)
def nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(checked_sources.CHANGED, raising=False)


@pytest.mark.parametrize(
    ("name", "is_noticed"),
    [("kernels/a.cu", True), ("kernels/include/b.cuh", True), ("launch.py", True),
     ("kernels/include/__pycache__/b.pyc", False), ("other.py", False)],
)  # fmt: skip
def test_a_source_that_changes_is_noticed(
    sources: CheckedSources, name: str, is_noticed: bool
) -> None:
    assert sources.have_changed
    sources.noted.write_text(sources.digest() + "\n")
    assert not sources.have_changed
    assert sources.mark == pytest.mark.exhaustive
    (sources.noted.parent / name).write_text("three")
    assert sources.have_changed == is_noticed
    assert sources.mark == (pytest.mark.slow if is_noticed else pytest.mark.exhaustive)


def test_all_may_be_asked_for(sources: CheckedSources, monkeypatch: pytest.MonkeyPatch) -> None:
    sources.noted.write_text(sources.digest() + "\n")
    monkeypatch.setenv(checked_sources.CHANGED, "1")
    assert sources.have_changed


@pytest.mark.parametrize("code", [0, 1])
def test_only_what_passed_is_noted(
    sources: CheckedSources, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was when the tests began."""
    before = sources.digest()

    def edit(
        command: list[str], *, env: dict[str, str], **_: object
    ) -> subprocess.CompletedProcess[str]:
        assert env[checked_sources.CHANGED]
        assert env["SPEC_TEST_ALL"]
        (sources.places[0] / "a.cu").write_text("edited meanwhile")
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(checked_sources, "problem", lambda: None)
    monkeypatch.setattr(subprocess, "run", edit)
    assert sources.check() == code
    assert sources.noted.exists() == (code == 0)
    assert code or sources.noted.read_text().strip() == before


def test_nothing_is_noted_where_tests_would_be_skipped(
    sources: CheckedSources, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checked_sources, "nvrtc_problem", lambda: "NVRTC is not installed")
    monkeypatch.setattr(checked_sources, "host_problem", lambda: None)
    monkeypatch.setattr(sanitizer, "unavailable_reason", lambda: None)
    assert sources.check() == 1
    shown = capsys.readouterr().err
    assert shown == "the CUDA sources cannot be checked here: NVRTC is not installed\n"
    assert not sources.noted.exists()


@pytest.mark.parametrize("sources", checked_sources.ALL.values(), ids=checked_sources.ALL)
def test_what_is_named_is_there(sources: CheckedSources) -> None:
    assert all(place.exists() for place in sources.places)
    assert all((checked_sources.ROOT / test).is_dir() for test in sources.tests)
