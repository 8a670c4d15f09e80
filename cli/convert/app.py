"""The list of `spec convert` subcommands."""

from __future__ import annotations

import typer

from ..flags import SectionedCommand
from .quantize import quantize

app = typer.Typer(
    name="convert",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Inspect, attach, extract, convert and quantise model files.",
)
# one line per subcommand: app.command("inspect", cls=SectionedCommand)(inspect)
app.command("quantize", cls=SectionedCommand)(quantize)
__all__ = ["SectionedCommand", "app"]
