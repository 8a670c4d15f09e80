"""Every option that more than one command has, defined once. Names follow llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path | None,
    typer.Option("--model", "-m", metavar="FILE", help="The model: a GGUF file."),
]
PromptArgument = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The prompt, or - to read standard input."),
]
Prompt = Annotated[
    str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt, or -.")
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="Read the prompt from a file (its last newline goes)."
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--predict", "--n-predict", "-n", metavar="N",
        help="Tokens to generate; -1 goes on until the model stops or the context is full.",
    ),
]  # fmt: skip
ContextSize = Annotated[
    int,
    typer.Option(
        "--ctx-size", "-c", metavar="N", min=0, help="Context length; 0 lets the model decide."
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", "-s", metavar="N", help="Random seed; -1 draws one and prints it."),
]
Temperature = Annotated[
    float, typer.Option("--temp", metavar="T", help="Temperature; 0 always takes the best token.")
]
TopK = Annotated[
    int, typer.Option("--top-k", metavar="K", help="Keep the K best tokens; 0 keeps all.")
]
TopP = Annotated[
    float,
    typer.Option("--top-p", metavar="P", help="Keep the best tokens up to probability P."),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="NAME",
        help="Where to compute: torch, torch:cpu, torch:mps, torch:cuda[:N], or auto.",
    ),
]  # fmt: skip
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no summary; errors still show.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more about the model.")]
# Read by `app.run` before parsing, because a command line that fails to parse needs it too.
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error (or set SPEC_DEBUG=1).")
]
