"""The flags of `spec bench-spec` that no other command has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

FORMATS = ("md", "json", "jsonl", "csv", "sql")


@dataclass(frozen=True, slots=True)
class WorkOptions:
    SECTION: ClassVar = "Prompts"

    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", metavar="FILE",
            help="Your own: JSONL with text or turns per line (Spec-Bench, SPEED-Bench), or text "
            "with lines of --- between.",
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
        typer.Option("--category", metavar="A,B", help="Only prompts of these categories."),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="No more than N prompts of a category."),
    ] = None
    predict: Annotated[
        int | None,
        typer.Option(
            "--predict", "--n-predict", "-n", metavar="N", min=2,
            help="Tokens of each answer, instead of what the prompts say.",
        ),
    ] = None  # fmt: skip
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--stop-at-eos",
            help="Whether texts go on where the model would end them.  [default: for prompts that "
            "are continued, not for those that are answered]",
        ),
    ] = None  # fmt: skip
    temperature: Annotated[
        float, typer.Option("--temp", "--temperature", metavar="T", min=0.0, help="0: greedy.")
    ] = 0.0
    seed: Annotated[
        int,
        typer.Option("--seed", "-s", metavar="N", min=0, help="Of texts and of the order of runs."),
    ] = 0


@dataclass(frozen=True, slots=True)
class VersusOptions:
    SECTION: ClassVar = "Configurations"

    vs: Annotated[
        list[str] | None,
        typer.Option(
            "--vs", metavar="CONFIG",
            help="Types as in --spec-type, then settings: mtp:n=3,fixed or ngram-mod,mtp:p=0.5. "
            "Settings: n, min, p, vocab, prefill (as --spec-draft-n-max and so on), costs, accept, "
            "synth, fixed. May be given several times: the others are compared with the first, a "
            "single one with none.  [default: none and auto]",
        ),
    ] = None  # fmt: skip
    draft_model: Annotated[
        Path | None,
        typer.Option(
            "--spec-draft-model", "-md", "--model-draft", metavar="FILE",
            help="A draft model, or a file with an MTP head for this one.",
        ),
    ] = None  # fmt: skip
    fixed: Annotated[
        bool,
        typer.Option("--spec-fixed", help="fixed for every --vs: drafts do not follow the clock."),
    ] = False
    costs: Annotated[
        Path | None,
        typer.Option("--spec-costs", metavar="FILE", help="Frozen costs for every --vs: likewise."),
    ] = None
    synth: Annotated[
        str | None,
        typer.Option(
            "--synth", metavar="N,N",
            help="Instead: what drafts of these lengths would gain, by how much of them is "
            "accepted, which coins decide.",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class MethodOptions:
    SECTION: ClassVar = "Method"

    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", "-r", metavar="N", min=1,
            help="Times that every configuration writes every prompt.",
        ),
    ] = 5  # fmt: skip
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="S",
            help="Repeat until the intervals are narrow (--precision) or S seconds are over; 3m "
            "is 180.",
        ),
    ] = None  # fmt: skip
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", metavar="P",
            help="With --time: half an interval that is narrow enough.  [default: 1%]",
        ),
    ] = None  # fmt: skip
    warm_up: Annotated[
        bool, typer.Option("--warmup/--no-warmup", help="Write two prompts first, uncounted.")
    ] = True
    concurrency: Annotated[
        str,
        typer.Option("--concurrency", metavar="N,N", help="Users at once, one after the other."),
    ] = "1"


@dataclass(frozen=True, slots=True)
class GateOptions:
    SECTION: ClassVar = "Gates (exit 3 if one is missed)"

    identical: Annotated[
        bool,
        typer.Option(
            "--expect-identical/--no-expect-identical",
            help="All texts are those of the first configuration, token by token.",
        ),
    ] = True  # fmt: skip
    min_acceptance: Annotated[
        str | None,
        typer.Option("--min-acceptance", metavar="P", help="Share of drafted tokens, 0.6 or 60%."),
    ] = None
    min_mean_len: Annotated[
        float | None,
        typer.Option("--min-mean-len", metavar="L", min=1.0, help="Tokens per round."),
    ] = None
    min_speedup: Annotated[
        float | None,
        typer.Option(
            "--min-speedup", metavar="X", min=0.0,
            help="Of decoding; missed only if the interval's bound misses it.",
        ),
    ] = None  # fmt: skip
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline", metavar="FILE", help="An earlier report of this host (-o json)."
        ),
    ] = None
    max_regression: Annotated[
        str | None,
        typer.Option(
            "--max-regression", metavar="P",
            help="What may be lost against --baseline.  [default: 10%]",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReportOptions:
    SECTION: ClassVar = "Output"

    output: Annotated[
        str, typer.Option("--output", "-o", metavar="|".join(FORMATS), help="What stdout gets.")
    ] = "md"
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="FILE", help="Also keep the whole report, as -o json has it."
        ),
    ] = None
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also a page with plots: one file, for any browser."
        ),
    ] = None
    plot: Annotated[bool, typer.Option("--plot", help="Also plots of characters, on stderr.")] = (
        False
    )
    gha_json: Annotated[
        Path | None,
        typer.Option(
            "--gha-json", metavar="FILE",
            help="Also figures for github-action-benchmark, its tool customBiggerIsBetter.",
        ),
    ] = None  # fmt: skip
