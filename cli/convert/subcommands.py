"""The list of `spec convert` subcommands."""

from __future__ import annotations

from typing import Final

import typer

from ..console import print_help
from ..lazy_group import SETTINGS, Subcommand, group_of

# in the order in which a model meets them
COMMANDS: Final = {
    "inspect": Subcommand(
        ".convert.inspect", "inspect", "What a file is, whether it speculates, what is wrong.",
        ".convert.inspect:InspectCommand",
    ),
    "hf": Subcommand(".convert.hf", "hf", "A checkpoint of safetensors to GGUF."),
    "drafter": Subcommand(
        ".convert.drafter", "drafter", "A drafter of any layout in the names of llama.cpp."
    ),
    "lora": Subcommand(".convert.lora", "lora", "A LoRA adapter of PEFT to GGUF."),
    "train": Subcommand(".convert.train", "train", "A drafter for a model, out of its own texts."),
    "attach": Subcommand(".convert.attach", "attach", "An MTP head into a GGUF that lost it."),
    "extract": Subcommand(
        ".convert.recombine_commands", "extract", "The MTP head into a file of its own."
    ),
    "detach": Subcommand(".convert.recombine_commands", "detach", "A GGUF without its MTP head."),
    "merge": Subcommand(".convert.recombine_commands", "merge", "Shards into one file."),
    "split": Subcommand(".convert.recombine_commands", "split", "One file into shards."),
    "quantize": Subcommand(".convert.quantize", "quantize", "A GGUF in fewer bits."),
    "imatrix": Subcommand(
        ".convert.importance", "imatrix", "Which columns of its matrices matter, for quantize."
    ),
    "measure": Subcommand(
        ".convert.measure", "measure", "What a file lost: perplexity, KL divergence, agreement."
    ),
    "check": Subcommand(
        ".convert.check", "check", "The same, of every number, with trial runs.",
        ".convert.judging:VerdictCommand",
    ),
}  # fmt: skip
app = typer.Typer(name="convert", cls=group_of(COMMANDS), **SETTINGS)


@app.callback(invoke_without_command=True)
def convert(context: typer.Context) -> None:
    """Inspect, attach, extract, convert, quantise, measure and train model files."""
    if context.invoked_subcommand is None:
        print_help(context.get_help())
        raise typer.Exit(2)
