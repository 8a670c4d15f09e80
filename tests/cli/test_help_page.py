"""docs/cli.md is what `--help` says, and saying it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nextn.cli import app
from nextn.cli.convert import subcommands
from nextn.cli.help_page import help_page
from nextn.cli.lazy_group import Subcommand, load

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == help_page(), "run: python -m nextn.cli.help_page > docs/cli.md"


def test_help_loads_nothing_heavy() -> None:
    """That is what keeps `spec --help` under a quarter of a second."""
    program = (
        "import sys; from nextn.cli.app import run; run(['generate', '--help']); "
        "[run(['convert', name, '--help']) for name in "
        "'inspect hf train attach extract detach merge split quantize measure check'.split()]; "
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(done.stderr.decode().split())
    heavy = {"numpy", "torch", "tokenizers", "numba", "jinja2", "gguf", "rich", "cupy", "starlette"}
    assert "typer" in loaded
    assert not heavy & loaded


@pytest.mark.parametrize("table", [app.COMMANDS, subcommands.COMMANDS])
def test_every_row_of_the_tables_is_a_command(table: dict[str, Subcommand]) -> None:
    for name, row in table.items():
        command = load(name, row)
        assert command.name == name
        assert command.help
