"""docs/cli.md from the commands themselves: `python -m nextn.cli.help_page > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from .app import app
from .console import print_page

WIDTH = 90


def help_page() -> str:
    root: Any = typer.main.get_command(app)
    context = root.make_context("spec", [], resilient_parsing=True, terminal_width=WIDTH)
    parts = ["# The `spec` command", "Generated from `--help`; do not edit.", "## spec"]
    parts.append(fenced(context.get_help()))
    parts += sections(root, context, "spec")
    return "\n\n".join(parts) + "\n"


def sections(group: Any, context: Any, path: str) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield f"## {path} {name}"
        yield fenced(below.get_help())
        if hasattr(command, "list_commands"):
            yield from sections(command, below, f"{path} {name}")


def fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


if __name__ == "__main__":
    print_page(help_page())
