"""Command groups that import a subcommand when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
import typer.core
import typer.main

from .plain_values import PlainParams

SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class Subcommand(NamedTuple):
    module: str  # relative to `cli`
    attribute: str  # a function, or a typer app
    about: str  # its line in the group's help
    kind: str = ".flags:SectionedCommand"  # class of the command


class LazyGroup(PlainParams, typer.core.TyperGroup):
    table: dict[str, Subcommand]  # in the order of the help

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Names for suggestions; a command is in its place once it is loaded.
        self.commands: Any = dict.fromkeys(self.table)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.table and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load(cmd_name, self.table[cmd_name])
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.about) for name, row in self.table.items()])


def group_of(table: dict[str, Subcommand]) -> type[LazyGroup]:
    return type("Group", (LazyGroup,), {"table": table})


def load(name: str, row: Subcommand) -> Any:
    """The command itself; its module is imported now."""
    found = _find(f"{row.module}:{row.attribute}")
    if not isinstance(found, typer.Typer):
        single = typer.Typer(**SETTINGS)
        single.command(name, cls=_find(row.kind), short_help=row.about)(found)
        found = single
    command = typer.main.get_command(found)
    command.name = name
    return command


def _find(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module, __package__), attribute)
