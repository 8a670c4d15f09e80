"""The `spec` command: lists the subcommands; a failure becomes one line and an exit code.

0 fine, 1 failed, 2 wrong usage, 3 a gate was missed, 130 interrupted.
"""

from __future__ import annotations

import os
from itertools import takewhile
from typing import Annotated, Final

import typer

from .console import StdoutClosedError, print_error, print_help, print_version
from .lazy_group import SETTINGS, Subcommand, group_of
from .usage import UsageError, describe, failure_line

COMPARE: Final = "bench-spec compare"  # two words that are one command; see `one_name`
COMMANDS: Final = {
    "generate": Subcommand(".generate", "generate", "Continue a prompt, or chat."),
    "serve": Subcommand(
        ".serve", "serve", "Answer requests over HTTP, as llama-server and OpenAI do."
    ),
    "speculative-simple": Subcommand(
        ".speculative_simple",
        "speculative_simple",
        "The plain loop of speculative decoding, on one page of code.",
    ),
    "convert": Subcommand(
        ".convert.subcommands",
        "app",
        "Inspect, attach, extract, convert, quantise and measure model files.",
    ),
    "bench-spec": Subcommand(
        ".bench_spec", "bench_spec", "Measure what speculation gains, in pairs, with intervals."
    ),
    COMPARE: Subcommand(".bench_compare", "bench_compare", "Compare two reports of bench-spec."),
    "warmup": Subcommand(
        ".warmup", "warmup", "Compile the kernels that a file needs, for the CPU."
    ),
}
app = typer.Typer(name="spec", cls=group_of(COMMANDS), **SETTINGS | {"add_completion": True})


def show_version(wanted: bool) -> None:
    if wanted:
        print_version()
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Run GGUF language models with speculative decoding that never changes the text."""
    if context.invoked_subcommand is None:
        print_help(context.get_help())
        raise typer.Exit(2)


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    wants_traceback = "--debug" in argv or os.environ.get("SPEC_DEBUG") == "1"
    try:
        code = app(one_name(argv), prog_name="spec", standalone_mode=False)
    except UsageError as error:
        print_error(describe(error))
        return 2
    except StdoutClosedError:
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        if wants_traceback:
            raise
        print_error(failure_line(error))
        return 1
    return code if isinstance(code, int) else 0


def one_name(argv: list[str]) -> list[str]:
    """`bench-spec [-q] compare …` is a command of its own, and `help …` a way to ask for help."""
    if argv[:1] == ["help"]:
        return one_name([*argv[1:], "--help"])
    first, second = COMPARE.split()
    flags = list(takewhile(lambda word: word.startswith("-"), argv[1:]))
    n = 1 + len(flags)
    is_compare = argv[:1] == [first] and argv[n : n + 1] == [second]
    return [COMPARE, *flags, *argv[n + 1 :]] if is_compare else argv
