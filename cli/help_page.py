"""docs/cli.md from the commands themselves: `python -m specdec.cli.help_page > docs/cli.md`."""

from __future__ import annotations

from typing import Any

import typer.main

from .app import app
from .output import print_page

WIDTH = 90


def help_page() -> str:
    root: Any = typer.main.get_command(app)
    context = root.make_context("spec", [], resilient_parsing=True, terminal_width=WIDTH)
    parts = ["# The `spec` command", "Generated from `--help`; do not edit.", "## spec"]
    parts.append(fenced(context.get_help()))
    for name, command in root.commands.items():
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        parts += [f"## spec {name}", fenced(below.get_help())]
    return "\n\n".join(parts) + "\n"


def fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


if __name__ == "__main__":
    print_page(help_page())
