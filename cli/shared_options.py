"""Every flag that more than one command has, defined once.

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
        help="Maximum number of tokens; -1: until the model ends the text or the context is full.",
    ),
]  # fmt: skip
IgnoreEosOption = Annotated[
    bool,
    typer.Option(
        "--ignore-eos", help="No end by the model: end-of-text tokens are never generated."
    ),
]


@dataclass(frozen=True, slots=True)
class PromptOptions:
    SECTION: ClassVar = "Prompt"

    prompt_argument: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Prompt text, or - for standard input.")
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", help="Prompt text, or - for standard input."
        ),
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE",
            help="File with the prompt; one final newline is removed.",
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
            help="Model file, GGUF; the bundled model of Python code if not given.",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelArgument:
    SECTION: ClassVar = "Model"

    model: Annotated[Path, typer.Argument(metavar="FILE", help="Model file, GGUF.")]


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    SECTION: ClassVar = "Model"

    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="NAME",
            help="Device for all computations: cpu, cuda[:N], torch, torch:mps or torch:cuda[:N]. "
            "cuda:0,1 or cuda:0-3 share the layers, as cuda does where one GPU is too small.",
        ),
    ] = "cpu"  # fmt: skip
    ctx_size: Annotated[
        int,
        typer.Option(
            "--ctx-size", "-c", metavar="N", min=0,
            help="Context length in tokens; 0: the model's own, at most 8192.",
        ),
    ] = 0  # fmt: skip
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", "-t", metavar="N", min=1,
            help="Number of threads of --device cpu; the number of cores if not given.",
        ),
    ] = None  # fmt: skip
    repack_cache: Annotated[
        bool,
        typer.Option(
            "--repack-cache",
            help="Copy of the weights on disk in the layout of --device cpu: later starts map it "
            "and repack nothing (also SPEC_REPACK_CACHE=1).",
        ),
    ] = False  # fmt: skip
    cache_type_k: Annotated[
        str,
        typer.Option(
            "--cache-type-k", "-ctk", metavar="TYPE",
            help="Type of the cached keys on --device cpu: f16, or q8_0 in half the memory.",
        ),
    ] = "f16"  # fmt: skip
    cache_type_v: Annotated[
        str,
        typer.Option("--cache-type-v", "-ctv", metavar="TYPE", help="Type of the cached values."),
    ] = "f16"


@dataclass(frozen=True, slots=True)
class TextOptions:
    SECTION: ClassVar = "Text"

    predict: PredictOption = UNLIMITED
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", "--reverse-prompt", "-r", metavar="TEXT",
            help="Stop string: the text ends before it. May be given several times.",
        ),
    ] = None  # fmt: skip
    ignore_eos: IgnoreEosOption = False
    grammar: Annotated[
        str | None,
        typer.Option("--grammar", metavar="GBNF", help="Grammar that the text has to follow."),
    ] = None
    grammar_file: Annotated[
        Path | None,
        typer.Option("--grammar-file", metavar="FILE", help="File with the grammar, GBNF."),
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(
            "--json-schema",
            "-j",
            metavar="SCHEMA",
            help="JSON schema that the text has to follow; {}: any JSON.",
        ),
    ] = None
    json_schema_file: Annotated[
        Path | None,
        typer.Option(
            "--json-schema-file", "-jf", metavar="FILE", help="File with the JSON schema."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ChatOptions:
    SECTION: ClassVar = "Chat"

    chat: Annotated[
        bool,
        typer.Option(
            "--chat", "-cnv", "--conversation",
            help="Chat mode: the prompt is a message in the model's chat template; without a "
            "prompt, a conversation on the terminal.",
        ),
    ] = False  # fmt: skip
    system_prompt: Annotated[
        str | None,
        typer.Option(
            "--system-prompt",
            "-sys",
            metavar="TEXT",
            help="System message: instructions that precede the conversation.",
        ),
    ] = None
    system_prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--system-prompt-file", "-sysf", metavar="FILE", help="File with the system message."
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        typer.Option(
            "--chat-template", metavar="NAME",
            help="Name of the chat template: chatml, or another one in the model file.",
        ),
    ] = None  # fmt: skip
    chat_template_file: Annotated[
        Path | None,
        typer.Option(
            "--chat-template-file", metavar="FILE", help="File with a chat template, Jinja."
        ),
    ] = None
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            "--chat-template-kwargs", metavar="JSON",
            help="""Chat template variables, JSON, such as '{"enable_thinking": false}'.""",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResultOptions:
    SECTION: ClassVar = "Output"

    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object at the end: text, tokens, statistics."),
    ] = False
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="One JSON object per token, then the one of --json.")
    ] = False
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs", metavar="N", min=0,
            help="Log-probability of each token and of the N best, with --json or --jsonl.",
        ),
    ] = None  # fmt: skip
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour of each token by its drafter.")
    ] = False


@dataclass(frozen=True, slots=True)
class VoiceOptions:
    SECTION: ClassVar = "Output"

    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="No progress and no summary on stderr; errors are printed."
        ),
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="More lines on stderr: model, memory, cache.")
    ] = False
    # Read by `app.run` before parsing, because a command line that fails to parse needs it too.
    debug: Annotated[
        bool, typer.Option("--debug", help="Traceback of an error (also SPEC_DEBUG=1).")
    ] = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise typer.BadParameter("--quiet and --verbose exclude each other")
