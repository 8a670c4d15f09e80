"""docs/models.md says what the tables say."""

from __future__ import annotations

from pathlib import Path

from support.models_page import models_page

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_is_up_to_date() -> None:
    command = "PYTHONPATH=tests/lib python -m support.models_page > docs/models.md"
    assert PAGE.read_text(encoding="utf-8") == models_page(), f"run: {command}"
