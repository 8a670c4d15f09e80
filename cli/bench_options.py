"""The flags of `spec bench-spec` that no other command has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

FORMATS = ("md", "json", "jsonl", "csv", "sql")


@dataclass(frozen=True, slots=True)
class PromptSetOptions:
    SECTION: ClassVar = "Prompts"

    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", metavar="FILE",
            help="Own prompts: JSONL with text or turns per line (Spec-Bench, SPEED-Bench), or "
            "text with lines of --- between.",
        ),
    ] = None  # fmt: skip
    prompt_set: Annotated[
        str,
        typer.Option(
            "--set", metavar="auto|code|chat",
            help="Built-in prompts: code to be continued, chat to be answered; auto is chat for "
            "models with a chat template, and code for the bundled one.",
        ),
    ] = "auto"  # fmt: skip
    category: Annotated[
        list[str] | None,
        typer.Option("--category", metavar="A,B", help="Categories of prompts.  [default: all]"),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="Maximum number of prompts a category."),
    ] = None
    predict: Annotated[
        int | None,
        typer.Option(
            "--predict", "--n-predict", "-n", metavar="N", min=2,
            help="Maximum tokens of each answer, instead of those of the prompt sets.",
        ),
    ] = None  # fmt: skip
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--stop-at-eos",
            help="Texts that continue where the model would end them.  [default: for prompts that "
            "are continued, not for those that are answered]",
        ),
    ] = None  # fmt: skip
    temperature: Annotated[
        float,
        typer.Option(
            "--temp", "--temperature", metavar="T", min=0.0, help="Temperature; 0 is greedy."
        ),
    ] = 0.0
    seed: Annotated[
        int,
        typer.Option("--seed", "-s", metavar="N", min=0, help="Seed of texts and run order."),
    ] = 0


@dataclass(frozen=True, slots=True)
class VersusOptions:
    SECTION: ClassVar = "Configurations"

    vs: Annotated[
        list[str] | None,
        typer.Option(
            "--vs", metavar="CONFIG",
            help="Configuration: types as in --spec-type, then settings: mtp:n=3,fixed or "
            "ngram-mod,mtp:p=0.5. Settings: n, min, p, vocab, prefill (as --spec-draft-n-max and "
            "so on), costs, accept, synth, fixed. Repeatable; the first is the baseline of the "
            "others, and none that of a single one.  [default: none and auto]",
        ),
    ] = None  # fmt: skip
    draft_model: Annotated[
        Path | None,
        typer.Option(
            "--spec-draft-model", "-md", "--model-draft", metavar="FILE",
            help="Draft model, or a file with an MTP head for this one.",
        ),
    ] = None  # fmt: skip
    fixed: Annotated[
        bool,
        typer.Option("--spec-fixed", help="Drafts that do not depend on the clock, in every --vs."),
    ] = False
    costs: Annotated[
        Path | None,
        typer.Option("--spec-costs", metavar="FILE", help="Frozen costs for every --vs."),
    ] = None
    synth: Annotated[
        str | None,
        typer.Option(
            "--synth", metavar="N,N",
            help="Draft lengths of a curve of speed-up by acceptance, instead of a comparison; "
            "acceptance is drawn at random.",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class MethodOptions:
    SECTION: ClassVar = "Method"

    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", "-r", metavar="N", min=1,
            help="Repetitions of every prompt by every configuration.",
        ),
    ] = 5  # fmt: skip
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="S",
            help="Maximum seconds (3m is 180) of repetitions until the intervals are narrow, see "
            "--precision.",
        ),
    ] = None  # fmt: skip
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", metavar="P",
            help="Half the width of an interval that ends --time early.  [default: 1%]",
        ),
    ] = None  # fmt: skip
    warm_up: Annotated[
        bool, typer.Option("--warmup/--no-warmup", help="Two uncounted prompts at the start.")
    ] = True
    concurrency: Annotated[
        str,
        typer.Option("--concurrency", metavar="N,N", help="Numbers of users at once."),
    ] = "1"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    SECTION: ClassVar = "Servers"

    url: Annotated[
        list[str] | None,
        typer.Option(
            "--url", metavar="[NAME=]URL",
            help="Server to measure: ours, llama-server, vLLM, any with OpenAI's API. Repeatable. "
            "Alone, nothing runs here; with -m or --vs, both are compared.",
        ),
    ] = None  # fmt: skip
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key", metavar="KEY", envvar="SPEC_API_KEY", show_envvar=False,
            help="Key of the servers: one for all, or one for each in their order (or set "
            "SPEC_API_KEY).",
        ),
    ] = None  # fmt: skip
    server_model: Annotated[
        str,
        typer.Option(
            "--server-model", metavar="NAME", help="Model of the server.  [default: its first]"
        ),
    ] = ""
    api: Annotated[
        str,
        typer.Option(
            "--api", metavar="auto|native|completions|chat",
            help="API of requests; native is llama.cpp's /completion, auto the richest that works.",
        ),
    ] = "auto"  # fmt: skip
    ask: Annotated[
        list[str] | None,
        typer.Option(
            "--ask", metavar="CONFIG|NAME={JSON}",
            help="Configuration by request: CONFIG as in --vs fills the field speculative, JSON is "
            "added to the body. Repeatable.",
        ),
    ] = None  # fmt: skip
    body: Annotated[
        str, typer.Option("--body", metavar="JSON", help="Fields for the body of every request.")
    ] = ""
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="S", help="Maximum seconds without a byte of a server."),
    ] = "10m"
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", metavar="xllamacpp[:CONFIG]",
            help="llama.cpp on the same file, with the same threads and context, for comparison; "
            "CONFIG as in --vs. Repeatable.",
        ),
    ] = None  # fmt: skip

    @property
    def stands_alone(self) -> bool:
        return bool(self.url) and not self.peer


@dataclass(frozen=True, slots=True)
class GateOptions:
    SECTION: ClassVar = "Gates (exit 3 if one is missed)"

    identical: Annotated[
        bool,
        typer.Option(
            "--expect-identical/--no-expect-identical",
            help="Texts equal to those of the first configuration, token by token.",
        ),
    ] = True  # fmt: skip
    min_acceptance: Annotated[
        str | None,
        typer.Option("--min-acceptance", metavar="P", help="Minimum acceptance rate, 0.6 or 60%."),
    ] = None
    min_mean_len: Annotated[
        float | None,
        typer.Option("--min-mean-len", metavar="L", min=1.0, help="Minimum tokens per round."),
    ] = None
    min_speedup: Annotated[
        float | None,
        typer.Option(
            "--min-speedup", metavar="X", min=0.0,
            help="Minimum speed-up of decoding; missed only if the interval's bound misses it.",
        ),
    ] = None  # fmt: skip
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Earlier report of this host (-o json)."),
    ] = None
    max_regression: Annotated[
        str | None,
        typer.Option(
            "--max-regression", metavar="P",
            help="Maximum loss against --baseline.  [default: 10%]",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReportOptions:
    SECTION: ClassVar = "Output"

    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="|".join(FORMATS), help="Form of the report."),
    ] = "md"
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="File for the whole report, as -o json."),
    ] = None
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="File for a page with charts."),
    ] = None
    plot: Annotated[bool, typer.Option("--plot", help="Charts of characters, on stderr.")] = False
    gha_json: Annotated[
        Path | None,
        typer.Option(
            "--gha-json", metavar="FILE",
            help="File for github-action-benchmark, its tool customBiggerIsBetter.",
        ),
    ] = None  # fmt: skip
