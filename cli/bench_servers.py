"""Flags of `spec bench-spec` for servers and peers, and the targets that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from .bench_progress import BenchProgress
from .bench_reading import pick_prompts, seconds, settings_of, with_usage_errors
from .bench_running import BenchPlan, argv, compare

if TYPE_CHECKING:
    from ..core.bench.gates import Gates
    from ..core.bench.paired_run import Schedule
    from ..core.bench.peer import PeerSettings
    from ..core.bench.record import BenchReport, PromptSet
    from ..core.bench.server_target import RemoteTarget
    from ..core.bench.servers import ServerRequests
    from ..core.bench.variants import SpecVariant
    from .bench_options import WorkOptions
    from .options import PlaceOptions
    from .output import Output


@dataclass(frozen=True, slots=True)
class ServerOptions:
    SECTION: ClassVar = "Servers"

    url: Annotated[
        list[str] | None,
        typer.Option(
            "--url", metavar="[NAME=]URL",
            help="Measure a server: ours, llama-server, vLLM, any with OpenAI's API. May be given "
            "several times. Alone, nothing runs here; with -m or --vs, both are compared.",
        ),
    ] = None  # fmt: skip
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key", metavar="KEY", envvar="SPEC_API_KEY", show_envvar=False,
            help="For the servers: one for all, or one for each, in their order (or set "
            "SPEC_API_KEY).",
        ),
    ] = None  # fmt: skip
    server_model: Annotated[
        str,
        typer.Option(
            "--server-model", metavar="NAME", help="Of those that a server has; else its first."
        ),
    ] = ""
    api: Annotated[
        str,
        typer.Option(
            "--api", metavar="auto|native|completions|chat",
            help="How to ask; native is llama.cpp's /completion, and auto finds out.",
        ),
    ] = "auto"  # fmt: skip
    ask: Annotated[
        list[str] | None,
        typer.Option(
            "--ask", metavar="CONFIG|NAME={JSON}",
            help="Configurations of the servers, by what requests say: CONFIG as in --vs fills the "
            "field speculative, JSON is put into the body. May be given several times.",
        ),
    ] = None  # fmt: skip
    body: Annotated[
        str, typer.Option("--body", metavar="JSON", help="Into the body of every request.")
    ] = ""
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="S", help="How long a server may say nothing."),
    ] = "10m"
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", metavar="xllamacpp[:CONFIG]",
            help="Start llama.cpp on the same file, with the same threads and context, and compare "
            "it, too; CONFIG as in --vs. May be given several times.",
        ),
    ] = None  # fmt: skip

    @property
    def stands_alone(self) -> bool:
        return bool(self.url) and not self.peer


def read_wishes(servers: ServerOptions) -> ServerRequests:
    import os

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
    return with_usage_errors(
        lambda: ServerRequests(
            parse_places(servers.url or (), servers.api_key or ()),
            tuple(map(parse_ask, servers.ask or ())),
            parse_extra(servers.body, "--body") if servers.body else {},
            servers.server_model,
            servers.api,
            Timeouts(silence=silence),
        )
    )


def read_peers(servers: ServerOptions) -> list[SpecVariant]:
    from ..core.bench.servers import parse_peer

    return with_usage_errors(lambda: [parse_peer(text) for text in servers.peer or ()])


def open_remote(wishes: ServerRequests, ends: ExitStack, output: Output) -> list[RemoteTarget]:
    from ..core.bench.servers import open_servers

    if wishes.places:
        output.progress("asking the servers what they are", 0.0)
    try:
        targets = with_usage_errors(lambda: open_servers(wishes))
    finally:
        output.clear_progress()
    for target in targets:
        ends.callback(target.close)
    return targets


def start_peers(
    variants: Sequence[SpecVariant], wishes: ServerRequests, ends: ExitStack, settings: PeerSettings
) -> list[RemoteTarget]:
    from dataclasses import replace

    from ..core.bench.servers import PeerTarget

    targets: list[RemoteTarget] = []
    for variant in variants:
        own = replace(settings, spec=variant.options)
        target = PeerTarget(variant.name, own, wishes.timeouts)
        ends.callback(target.close)
        targets.append(target)
    return targets


def peer_settings(
    model: Path, place: PlaceOptions, draft: Path | None, threads: int | None, n_ctx: int,
    users: int,
) -> PeerSettings:  # fmt: skip
    """What has to be the same on both sides."""
    import os

    from ..core.bench.peer import PeerSettings

    return PeerSettings(
        model, threads or os.cpu_count() or 1, n_ctx, users, place.cache_type_k,
        place.cache_type_v, draft_model=draft,
    )  # fmt: skip


def prompts_for(target: RemoteTarget, given: PromptSet | None, work: WorkOptions) -> PromptSet:
    """For runs without a model of our own: whether they fit, the server says."""
    return pick_prompts(given, work, lambda: target.service.can_chat)


def compare_servers(
    wishes: ServerRequests,
    given: PromptSet | None,
    work: WorkOptions,
    schedule: Schedule,
    gates: Gates,
    save: Path | None,
    output: Output,
) -> BenchReport:
    """Nothing runs in this process."""
    from ..core.bench.provenance import provenance
    from ..core.bench.servers import configuration_of_server, provenance_of, unique_names

    progress = BenchProgress(output)
    with ExitStack() as ends:
        remote = open_remote(wishes, ends, output)
        unique_names(remote)
        prompts = prompts_for(remote[0], given, work)
        plan = BenchPlan(prompts, settings_of(work, prompts), schedule, gates, save, progress)
        ends.callback(progress.close)
        configurations = [configuration_of_server(each, remote[0]) for each in remote]
        known = provenance(argv(), schedule.seed) | provenance_of(remote[0])
        return compare(remote, configurations, known, plan)
