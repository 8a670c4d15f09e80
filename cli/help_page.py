"""docs/cli.md from the commands themselves: `python -m nextn.cli.help_page > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import TextWrapper, fill
from typing import Any

import typer.main

from .app import app
from .console import print_page
from .llama_flag_table import ROWS, Row

WIDTH = 90
PROSE = 119


def help_page() -> str:
    root: Any = typer.main.get_command(app)
    context = root.make_context("spec", [], resilient_parsing=True, terminal_width=WIDTH)
    parts = ["# The `spec` command", "Generated from `--help`; do not edit.", "## spec"]
    parts.append(fenced(context.get_help()))
    parts += sections(root, context, "spec")
    parts += llama_sections()
    return "\n\n".join(parts) + "\n"


def sections(group: Any, context: Any, path: str) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield f"## {path} {name}"
        yield fenced(below.get_help())
        if hasattr(command, "list_commands"):
            yield from sections(command, below, f"{path} {name}")


def llama_sections() -> Iterator[str]:
    """What becomes of llama.cpp's flags that no command lists above."""
    yield "## Flags of llama.cpp"
    yield fill(
        "`spec serve` takes the command lines of llama-server, `spec generate` those of llama-cli, "
        "and `spec speculative-simple` those of llama-speculative-simple. Variables of theirs "
        "(`LLAMA_ARG_CTX_SIZE` and so on) set the flags that are listed above. Other flags are "
        "accepted without effect, for these reasons:",
        PROSE,
    )
    yield fenced(reasons((row, row.note) for row in ROWS if row.note))
    yield "Or they are refused, with what to use instead:"
    yield fenced(reasons((row, row.instead) for row in ROWS if row.instead))


def reasons(rows: Iterable[tuple[Row, str]]) -> str:
    """Each reason, with the flags that it holds for."""
    flags: dict[str, list[str]] = {}
    for row, reason in rows:
        flags.setdefault(reason, []).append(" ".join(row.names))
    listed = TextWrapper(WIDTH, "    ", "    ", break_on_hyphens=False)
    lines = [(reason, listed.fill(", ".join(names))) for reason, names in flags.items()]
    return "\n".join(f"{reason}\n{names}" for reason, names in lines)


def fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


if __name__ == "__main__":
    print_page(help_page())
