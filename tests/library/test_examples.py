"""The examples of docs/library.md, run from top to bottom on the bundled model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nextn

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")


def test_all_examples_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
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


def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells in order, without Jupyter."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 6
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        assert cell["outputs"] == []  # of one machine on one day
        exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    assert names["plain"].tokens == names["quick"].tokens
    assert sum(names["sources"].values()) > 1
    assert "draft tokens were accepted" in capsys.readouterr().out
