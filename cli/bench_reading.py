"""From the flags of `spec bench-spec` to values of the core; a wrong flag is a usage error."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import typer

from ..core.errors import ConfigError
from .bench_options import (
    GateOptions,
    MethodOptions,
    PromptSetOptions,
    ServerOptions,
    VersusOptions,
)
from .prompt_source import read_file
from .usage import flag_errors, with_dashes

if TYPE_CHECKING:
    from pathlib import Path

    from ..core.bench.gates import Gates
    from ..core.bench.paired_run import Schedule
    from ..core.bench.record import BenchReport, PromptSet, RunSettings
    from ..core.bench.servers import ServerRequests
    from ..core.bench.variants import SpecVariant

MAX_USERS: Final = 64
_GATE_FLAGS: Final = (
    "min-acceptance", "min-mean-len", "min-speedup", "baseline", "synth", "max-regression",
    "api-key", "ask", "peer",
)  # fmt: skip


def read_variants(versus: VersusOptions) -> list[SpecVariant]:
    from ..core.bench.variants import distinct, parse_variant

    costs = None if versus.costs is None else str(versus.costs)
    if versus.fixed and costs is not None:
        raise typer.BadParameter("--spec-fixed and --spec-costs exclude each other")
    texts = list(versus.vs or ("none", "auto"))
    parse = partial(parse_variant, fixed=versus.fixed, costs=costs)
    variants = distinct([_named(text, parse) for text in texts])
    for each in variants:
        if each.needs_draft_file and not versus.drafts:
            raise typer.BadParameter(f"--vs {each.name} needs a model to draft with: give -md FILE")
        if each.options.costs is not None and not each.repeats:
            raise typer.BadParameter(
                f"--vs {each.name}: no such file of costs: {each.options.costs}; "
                "spec generate --spec-costs FILE writes one"
            )
    if len(variants) == 1 and not variants[0].is_plain:
        variants.insert(0, parse_variant("none"))
    if versus.synth is not None and all(each.is_plain for each in variants):
        raise typer.BadParameter("--synth needs a --vs that drafts, such as mtp")
    return variants


def _named(text: str, parse: Callable[[str], SpecVariant]) -> SpecVariant:
    def spell(message: str) -> str:
        message = message.removeprefix(f"{text!r}: ")
        return f"--vs {text}: {with_dashes(message)}"

    with flag_errors(spell):
        return parse(text)


def read_schedule(method: MethodOptions, seed: int) -> Schedule:
    from ..core.bench.paired_run import Schedule

    if method.precision is not None and method.time is None:
        raise typer.BadParameter("--precision ends --time early; give --time as well")
    precision = share(method.precision or "1%", "--precision")
    return Schedule(
        method.repeat,
        seconds(method.time, "--time"),
        precision,
        int(method.warm_up),
        counts(method.concurrency, "--concurrency", MAX_USERS),
        seed,
    )


def read_servers(servers: ServerOptions) -> ServerRequests:
    from ..core.bench.dialects import parse_extra
    from ..core.bench.servers import ServerRequests, parse_ask, parse_places
    from ..core.bench.wire import Timeouts

    for name, value in (("--ask", servers.ask), ("--body", servers.body),
                        ("--server-model", servers.server_model),
                        ("--api-key", servers.api_key and "SPEC_API_KEY" not in os.environ),
                        ("--api", servers.api != "auto")):  # fmt: skip
        if value and not servers.url:
            raise typer.BadParameter(f"{name} is for servers, and there is no --url")
    silence = seconds(servers.timeout, "--timeout")
    assert silence is not None
    with flag_errors(flag_names):
        return ServerRequests(
            parse_places(servers.url or (), servers.api_key or ()),
            tuple(map(parse_ask, servers.ask or ())),
            parse_extra(servers.body, "--body") if servers.body else {},
            servers.server_model,
            servers.api,
            Timeouts(silence=silence),
        )


def read_peers(servers: ServerOptions) -> list[SpecVariant]:
    from ..core.bench.servers import parse_peer

    with flag_errors(flag_names):
        return [parse_peer(text) for text in servers.peer or ()]


def settings_of(work: PromptSetOptions, prompts: PromptSet) -> RunSettings:
    from ..core.bench.record import RunSettings

    goes_on = work.ignore_eos
    if goes_on is None:  # a continuation has no end of its own
        goes_on = any(prompt.text for prompt in prompts.prompts)
    return RunSettings(work.temperature, work.seed, work.predict, goes_on)


def check_prompt_set(name: str) -> None:
    from ..core.bench.workloads import BUILT_IN

    if name not in ("auto", *BUILT_IN):
        raise typer.BadParameter(f"--set is auto, {' or '.join(BUILT_IN)}, got {name!r}")


def pick_prompts(
    given: PromptSet | None, work: PromptSetOptions, answers: Callable[[], bool]
) -> PromptSet:
    """The chosen prompts of a set, the user's or a built-in one. `answers`: does the model chat?"""
    from ..core.bench.workloads import built_in, selected

    if given is None:
        name = work.prompt_set
        if name == "auto":
            name = "chat" if answers() else "code"
        given = built_in(name)
    categories = [each.strip() for text in work.category or () for each in text.split(",")]
    with flag_errors(flag_names):
        return selected(given, categories, work.limit)


def read_gates(limits: GateOptions) -> Gates:
    from ..core.bench.gates import Gates

    if limits.max_regression is not None and limits.baseline is None:
        raise typer.BadParameter("--max-regression is against a report; give --baseline FILE")
    baseline = None if limits.baseline is None else read_report(limits.baseline, "--baseline")
    acceptance = limits.min_acceptance
    return Gates(
        limits.identical,
        None if acceptance is None else share(acceptance, "--min-acceptance"),
        limits.min_mean_len,
        limits.min_speedup,
        share(limits.max_regression or "10%", "--max-regression"),
        baseline,
    )


def read_report(path: Path, what: str) -> BenchReport:
    from ..core.bench.record import BenchReport

    try:
        return BenchReport.from_json(json.loads(read_file(path)))
    except OSError as error:
        raise _unreadable(what, path, error) from None
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{what} {path}: not JSON: {error}") from None
    except ConfigError as error:
        raise typer.BadParameter(f"{what} {path}: {error}") from None


def read_prompt_file(path: Path) -> PromptSet:
    from ..core.bench.prompt_files import read_prompt_file as read

    try:
        with flag_errors(flag_names):
            return read(path)
    except OSError as error:
        raise _unreadable("--prompts", path, error) from None


def _unreadable(what: str, path: Path, error: OSError) -> typer.BadParameter:
    """A usage error: exit code 1 would mean that a text has failed."""
    reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or "?"
    return typer.BadParameter(f"{what} {path}: {reason[:1].lower()}{reason[1:]}")


def flag_names(message: str) -> str:
    """The core names options without the dashes of flags."""
    return f"--{message}" if message.startswith(_GATE_FLAGS) else with_dashes(message)


def share(text: str, flag: str) -> float:
    """`0.1` or `10%`."""
    number = text.strip()
    scale = 1.0
    if number.endswith("%"):
        number, scale = number[:-1], 0.01
    try:
        value = scale * float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"{flag} is a share such as 10% or 0.1, got {text!r}")
    return value


def seconds(text: str | None, flag: str) -> float | None:
    """`90`, `90s`, `3m`."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text.strip())
    if found is None or not float(found[1]):
        raise typer.BadParameter(f"{flag} is a time such as 90, 90s or 3m, got {text!r}")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2] or "s"]


def counts(text: str, flag: str, highest: int) -> tuple[int, ...]:
    """`1,2,4`."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"\d{1,4}", word) and 1 <= int(word) <= highest for word in words):
        raise typer.BadParameter(
            f"{flag} is a list of numbers from 1 to {highest} such as 1,2,4, got {text!r}"
        )
    return tuple(dict.fromkeys(map(int, words)))
