"""The flags of `spec bench-spec` that no other command has."""

from __future__ import annotations

from pathlib import Path

from .flags import flag, flag_group
from .spec_options import named_drafts

FORMATS = ("md", "json", "jsonl", "csv", "sql")


@flag_group("Prompts")
class PromptSetOptions:
    prompts: Path | None = flag(
        "--prompts FILE",
        "Own prompts: JSONL with text or turns per line (Spec-Bench, SPEED-Bench), or text with "
        "lines of --- between.",
    )
    prompt_set: str = flag(
        "--set auto|code|chat",
        "Built-in prompts: code to be continued, chat to be answered; auto is chat for models "
        "with a chat template, and code for the bundled one.",
        "auto",
    )
    category: list[str] | None = flag("--category A,B", "Categories of prompts.  [default: all]")
    limit: int | None = flag("--limit N", "Maximum number of prompts a category.", min=1)
    predict: int | None = flag(
        "--predict --n-predict -n N",
        "Maximum tokens of each answer, instead of those of the prompt sets.",
        min=2,
    )
    ignore_eos: bool | None = flag(
        "--ignore-eos/--stop-at-eos",
        "Texts that continue where the model would end them.  [default: for prompts that are "
        "continued, not for those that are answered]",
        None,
    )
    temperature: float = flag("--temp --temperature T", "Temperature; 0 is greedy.", 0.0, min=0.0)
    seed: int = flag("--seed -s N", "Seed of texts and run order.", 0, min=0)


@flag_group("Configurations")
class VersusOptions:
    vs: list[str] | None = flag(
        "--vs CONFIG",
        "Configuration: types as in --spec-type, then settings: mtp:n=3,fixed or "
        "ngram-mod,mtp:p=0.5. Settings: n, min, p, vocab, prefill (as --spec-draft-n-max and so "
        "on), costs, accept, synth, fixed. Repeatable; the first is the baseline of the others, "
        "and none that of a single one.  [default: none and auto]",
    )
    draft_models: list[Path] | None = flag(
        "--spec-draft-model -md --model-draft FILE",
        "Draft model, or a file with an MTP head or another network for this one. May be given "
        "several times; llama.cpp gets the first. Without it, networks beside the model's file are "
        "used; none: no file.",
    )
    fixed: bool = flag("--spec-fixed", "Drafts that do not depend on the clock, in every --vs.")
    costs: Path | None = flag("--spec-costs FILE", "Frozen costs for every --vs.")
    synth: str | None = flag(
        "--synth N,N",
        "Draft lengths of a curve of speed-up by acceptance, instead of a comparison; acceptance "
        "is drawn at random.",
    )

    @property
    def drafts(self) -> list[Path] | None:
        return named_drafts(self.draft_models)


@flag_group("Method")
class MethodOptions:
    repeat: int = flag(
        "--repeat -r N", "Repetitions of every prompt by every configuration.", 5, min=1
    )
    time: str | None = flag(
        "--time S",
        "Maximum seconds (3m is 180) of repetitions until the intervals are narrow, see "
        "--precision.",
    )
    precision: str | None = flag(
        "--precision P", "Half the width of an interval that ends --time early.  [default: 1%]"
    )
    warm_up: bool = flag("--warmup/--no-warmup", "Two uncounted prompts at the start.", True)
    concurrency: str = flag("--concurrency N,N", "Numbers of users at once.", "1")


@flag_group("Servers")
class ServerOptions:
    url: list[str] | None = flag(
        "--url [NAME=]URL",
        "Server to measure: ours, llama-server, vLLM, any with OpenAI's API. Repeatable. Alone, "
        "nothing runs here; with -m or --vs, both are compared.",
    )
    api_key: list[str] | None = flag(
        "--api-key KEY",
        "Key of the servers: one for all, or one for each in their order (or set SPEC_API_KEY).",
        envvar="SPEC_API_KEY",
        show_envvar=False,
    )
    server_model: str = flag(
        "--server-model NAME", "Model of the server.  [default: its first]", ""
    )
    api: str = flag(
        "--api auto|native|completions|chat",
        "API of requests; native is llama.cpp's /completion, auto the richest that works.",
        "auto",
    )
    ask: list[str] | None = flag(
        "--ask CONFIG|NAME={JSON}",
        "Configuration by request: CONFIG as in --vs fills the field speculative, JSON is added "
        "to the body. Repeatable.",
    )
    body: str = flag("--body JSON", "Fields for the body of every request.", "")
    timeout: str = flag("--timeout S", "Maximum seconds without a byte of a server.", "10m")
    peer: list[str] | None = flag(
        "--peer xllamacpp[:CONFIG]",
        "llama.cpp on the same file, with the same threads and context, for comparison; CONFIG as "
        "in --vs. Repeatable.",
    )

    @property
    def stands_alone(self) -> bool:
        return bool(self.url) and not self.peer


@flag_group("Gates (exit 3 if one is missed)")
class GateOptions:
    identical: bool = flag(
        "--expect-identical/--no-expect-identical",
        "Texts equal to those of the first configuration, token by token.",
        True,
    )
    min_acceptance: str | None = flag("--min-acceptance P", "Minimum acceptance rate, 0.6 or 60%.")
    min_mean_len: float | None = flag("--min-mean-len L", "Minimum tokens per round.", min=1.0)
    min_speedup: float | None = flag(
        "--min-speedup X",
        "Minimum speed-up of decoding; missed only if the interval's bound misses it.",
        min=0.0,
    )
    baseline: Path | None = flag("--baseline FILE", "Earlier report of this host (-o json).")
    max_regression: str | None = flag(
        "--max-regression P", "Maximum loss against --baseline.  [default: 10%]"
    )


@flag_group("Output")
class ReportOptions:
    output: str = flag(f"--output -o {'|'.join(FORMATS)}", "Form of the report.", "md")
    save: Path | None = flag("--save FILE", "File for the whole report, as -o json.")
    html: Path | None = flag("--html FILE", "File for a page with charts.")
    plot: bool = flag("--plot", "Charts of characters, on stderr.")
    gha_json: Path | None = flag(
        "--gha-json FILE", "File for github-action-benchmark, its tool customBiggerIsBetter."
    )
