"""Every flag that more than one command has, or will have, defined once.

Names follow llama.cpp. `sampling_options` has those of the samplers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

UNLIMITED = -1

PredictOption = Annotated[
    int,
    typer.Option(
        "--predict", "--n-predict", "-n", metavar="N",
        help="Tokens to generate; -1 goes on until the model stops or the context is full.",
    ),
]  # fmt: skip
IgnoreEosOption = Annotated[
    bool, typer.Option("--ignore-eos", help="Never let the model end the text.")
]


@dataclass(frozen=True, slots=True)
class PromptOptions:
    SECTION: ClassVar = "Prompt"

    prompt_argument: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt, or - for standard input.")
    ] = None
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt, or -.")
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE",
            help="Read the prompt from a file (its last newline goes).",
        ),
    ] = None  # fmt: skip

    @property
    def is_given(self) -> bool:
        return (self.prompt_argument, self.prompt, self.file) != (None, None, None)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    SECTION: ClassVar = "Model"

    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", metavar="FILE",
            help="The model: a GGUF file. Without it, a small one of Python code that is bundled.",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelArgument:
    SECTION: ClassVar = "Model"

    model: Annotated[Path, typer.Argument(metavar="FILE", help="The model: a GGUF file.")]


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    SECTION: ClassVar = "Model"

    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="NAME",
            help="Where to compute: cpu, cuda[:N], torch, torch:mps or torch:cuda[:N]. "
            "cuda:0,1 or cuda:0-3 share the layers, as cuda does where one GPU is too small.",
        ),
    ] = "cpu"  # fmt: skip
    ctx_size: Annotated[
        int,
        typer.Option(
            "--ctx-size", "-c", metavar="N", min=0,
            help="Context length; 0 takes the model's own, but no more than 8192.",
        ),
    ] = 0  # fmt: skip
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", "-t", metavar="N", min=1,
            help="Threads of --device cpu; as many as there are cores unless given.",
        ),
    ] = None  # fmt: skip
    repack_cache: Annotated[
        bool,
        typer.Option(
            "--repack-cache",
            help="Keep the weights on disk as --device cpu wants them: later starts map them and "
            "repack nothing (or set SPEC_REPACK_CACHE=1).",
        ),
    ] = False  # fmt: skip
    cache_type_k: Annotated[
        str,
        typer.Option(
            "--cache-type-k", "-ctk", metavar="TYPE",
            help="How --device cpu keeps keys of the context: f16, or q8_0 in half the memory.",
        ),
    ] = "f16"  # fmt: skip
    cache_type_v: Annotated[
        str,
        typer.Option("--cache-type-v", "-ctv", metavar="TYPE", help="The same for values."),
    ] = "f16"


@dataclass(frozen=True, slots=True)
class TextOptions:
    SECTION: ClassVar = "Text"

    predict: PredictOption = UNLIMITED
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", "--reverse-prompt", "-r", metavar="TEXT",
            help="End the text before this one comes up; may be given several times.",
        ),
    ] = None  # fmt: skip
    ignore_eos: IgnoreEosOption = False
    grammar: Annotated[
        str | None, typer.Option("--grammar", metavar="GBNF", help="Only text that this allows.")
    ] = None
    grammar_file: Annotated[
        Path | None, typer.Option("--grammar-file", metavar="FILE", help="The same, in a file.")
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(
            "--json-schema", "-j", metavar="SCHEMA", help="Only JSON of this form; {} is any."
        ),
    ] = None
    json_schema_file: Annotated[
        Path | None,
        typer.Option("--json-schema-file", "-jf", metavar="FILE", help="The same, in a file."),
    ] = None


@dataclass(frozen=True, slots=True)
class ChatOptions:
    SECTION: ClassVar = "Chat"

    chat: Annotated[
        bool,
        typer.Option(
            "--chat", "-cnv", "--conversation",
            help="Put the prompt into the model's chat template and print the answer; without a "
            "prompt, talk on the terminal.",
        ),
    ] = False  # fmt: skip
    system_prompt: Annotated[
        str | None,
        typer.Option("--system-prompt", "-sys", metavar="TEXT", help="How it is to behave."),
    ] = None
    system_prompt_file: Annotated[
        Path | None,
        typer.Option("--system-prompt-file", "-sysf", metavar="FILE", help="The same, in a file."),
    ] = None
    chat_template: Annotated[
        str | None,
        typer.Option(
            "--chat-template", metavar="NAME",
            help="chatml, or the name of another template in the model's file.",
        ),
    ] = None  # fmt: skip
    chat_template_file: Annotated[
        Path | None,
        typer.Option("--chat-template-file", metavar="FILE", help="A Jinja template of your own."),
    ] = None
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            "--chat-template-kwargs", metavar="JSON",
            help="""Switches of the template, such as '{"enable_thinking": false}'.""",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResultOptions:
    SECTION: ClassVar = "Output"

    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object at the end: text, tokens, statistics."),
    ] = False
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print one JSON object per token, then that one.")
    ] = False
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs", metavar="N", min=0,
            help="Log-probability of each token and of the N best; with --json or --jsonl.",
        ),
    ] = None  # fmt: skip
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour each token by who drafted it.")
    ] = False


@dataclass(frozen=True, slots=True)
class VoiceOptions:
    SECTION: ClassVar = "Output"

    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no summary; errors still show.")
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say more: about the model, memory, the cache.")
    ] = False
    # Read by `app.run` before parsing, because a command line that fails to parse needs it too.
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (or set SPEC_DEBUG=1).")
    ] = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise typer.BadParameter("--quiet and --verbose exclude each other")
