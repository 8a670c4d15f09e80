"""The examples of docs/library.md, run from top to bottom on the bundled model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nextn

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def test_all_examples_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 10
    load: Callable[..., nextn.LanguageModel] = nextn.load
    monkeypatch.setattr(nextn, "load", lambda _=None, **options: load(n_ctx=256, **options))
    names: dict[str, Any] = {"__name__": "example"}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert names["answer"] in ("yes", "no")
    assert names["person"].strip() in ("true", "false")
    assert len(names["results"]) == 3
    assert len({result.text for result in names["texts"]}) > 1
    assert capsys.readouterr().out.count("\n") > 8
