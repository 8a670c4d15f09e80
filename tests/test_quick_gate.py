"""Which tests `make quick` runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path, PurePath
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quick_gate", ROOT / "tests/quick_gate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KNOWN = [
    "tests/core/server/test_chat.py",
    "tests/core/server/test_chat_fields.py",
    "tests/core/server/test_chats.py",
    "tests/cli/test_chat.py",
]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("core/server/chat.py", KNOWN[:2]),
        ("tests/core/server/test_chats.py", KNOWN[2:3]),
        ("tests/lib/support/serving.py", []),
        ("docs/cli.md", []),
        ("core/server/ui/app.js", []),
        ("core/server/nothing.py", []),
    ],
)
def test_tests_of_a_changed_file(gate: ModuleType, path: str, wanted: list[str]) -> None:
    assert gate.tests_of(PurePath(path), KNOWN) == wanted


def test_the_rules_of_the_house_are_always_run(gate: ModuleType) -> None:
    assert gate.chosen_tests([], KNOWN) == list(gate.ALWAYS)
    assert all((ROOT / name).is_file() for name in gate.ALWAYS)
    many = [PurePath(f"tests/test_{i}.py") for i in range(50)]
    assert len(gate.chosen_tests(many, KNOWN)) == len(gate.ALWAYS) + gate.MOST_FILES


def test_missing_tools_are_one_line(
    gate: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "find_spec", lambda name: None if name != "pytest" else object())
    assert gate.main() == 1
    assert capsys.readouterr().err == "not installed here: ruff, mypy; run: make setup\n"
