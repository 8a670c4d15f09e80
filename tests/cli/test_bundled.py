"""Without `-m`, the model that is bundled."""

from __future__ import annotations

import json

import pytest

from nextn.cli.app import run
from nextn.core import nano
from nextn.core.gguf.reader import open_gguf


def test_generate_takes_the_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "def fibonacci(n):", "-n", "24", "--temp", "0"]
    assert run([*words, "--json"]) == 0
    bundled = json.loads(capsys.readouterr().out)
    assert run([*words, "--json", "-m", str(nano.path())]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == bundled["text"] != ""


def test_it_is_small_and_has_a_head_to_draft_with() -> None:
    assert nano.path().stat().st_size <= 16 << 20
    with open_gguf(nano.path()) as file:
        assert file.metadata.str("general.architecture") == "qwen35"
        assert any("nextn.eh_proj" in name for name in file.tensors)
