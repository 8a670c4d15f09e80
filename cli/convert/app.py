"""The list of `spec convert` subcommands."""

from __future__ import annotations

import typer

from ..flags import SectionedCommand
from .check import check
from .hf import hf

app = typer.Typer(
    name="convert",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Inspect, attach, extract, convert and quantise model files.",
)
app.command("check", cls=SectionedCommand)(check)
app.command("hf", cls=SectionedCommand)(hf)
__all__ = ["SectionedCommand", "app"]
