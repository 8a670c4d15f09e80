"""The list of `spec convert` subcommands."""

from __future__ import annotations

import typer

from ..flags import SectionedCommand
from .attach import attach
from .detach import detach
from .extract import extract
from .merge import merge
from .split import split

app = typer.Typer(
    name="convert",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Inspect, attach, extract, convert and quantise model files.",
)
# one line per subcommand: app.command("inspect", cls=SectionedCommand)(inspect)
app.command("attach", cls=SectionedCommand)(attach)
app.command("extract", cls=SectionedCommand)(extract)
app.command("detach", cls=SectionedCommand)(detach)
app.command("merge", cls=SectionedCommand)(merge)
app.command("split", cls=SectionedCommand)(split)
__all__ = ["SectionedCommand", "app"]
