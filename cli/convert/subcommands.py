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


# one line per subcommand, in the order in which a model meets them
for name, command, kind, about in (
    ("inspect", inspect, InspectCommand, "What a file is, and whether it speculates."),
    ("hf", hf, SectionedCommand, "A checkpoint of safetensors to GGUF."),
    ("attach", attach, SectionedCommand, "An MTP head into a GGUF that lost it."),
    ("extract", extract, SectionedCommand, "The MTP head into a file of its own."),
    ("detach", detach, SectionedCommand, "A GGUF without its MTP head."),
    ("merge", merge, SectionedCommand, "Shards into one file."),
    ("split", split, SectionedCommand, "One file into shards."),
    ("quantize", quantize, SectionedCommand, "A GGUF in fewer bits."),
    ("check", check, SectionedCommand, "Numbers, rules and a trial run of a GGUF."),
):
    app.command(name, cls=kind, short_help=about)(command)
