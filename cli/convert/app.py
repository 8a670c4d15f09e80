"""The list of `spec convert` subcommands."""

from __future__ import annotations

import typer

from ..flags import SectionedCommand
from ..output import print_help
from .attach import attach
from .check import check
from .detach import detach
from .extract import extract
from .hf import hf
from .inspect import InspectCommand, inspect
from .merge import merge
from .quantize import quantize
from .split import split

app = typer.Typer(
    name="convert",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def convert(context: typer.Context) -> None:
    """Inspect, attach, extract, convert and quantise model files."""
    if context.invoked_subcommand is None:
        print_help(context.get_help())
        raise typer.Exit(2)


# one line per subcommand
app.command("inspect", cls=InspectCommand)(inspect)
app.command("attach", cls=SectionedCommand)(attach)
app.command("extract", cls=SectionedCommand)(extract)
app.command("detach", cls=SectionedCommand)(detach)
app.command("merge", cls=SectionedCommand)(merge)
app.command("split", cls=SectionedCommand)(split)
app.command("check", cls=SectionedCommand)(check)
app.command("hf", cls=SectionedCommand)(hf)
app.command("quantize", cls=SectionedCommand)(quantize)
