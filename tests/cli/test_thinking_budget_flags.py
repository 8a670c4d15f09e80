"""`--reasoning-budget` of a chat in the terminal."""

from __future__ import annotations

import json

import pytest

from nextn.cli.app import run

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n{# </think> #}"
WORDS = [
    "generate", "-m", "nano", "--chat", "--chat-template", TEMPLATE, "-n", "30", "--temp", "0",
    "--json", "-q", "def add(a, b):",
]  # fmt: skip


def text(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert run([*WORDS, *flags]) == 0
    found: str = json.loads(capsys.readouterr().out)["text"]
    return found


def test_thoughts_end_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    free = text(capsys)
    assert "</think>" not in free
    assert text(capsys, "--reasoning-budget", "-1") == free
    before, mark, behind = text(capsys, "--reasoning-budget", "6").partition("</think>")
    assert free.startswith(before)
    assert mark
    assert behind.strip()
    message = ["--reasoning-budget-message", r"\nEnough."]
    cut = text(capsys, "--reasoning-budget", "6", *message)
    assert cut.startswith(before + "\nEnough.</think>")


def test_a_budget_below_minus_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*WORDS, "--reasoning-budget", "-2"]) == 2
    assert "--reasoning-budget" in capsys.readouterr().err
