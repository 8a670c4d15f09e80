"""The servers and peers of `spec bench-spec`, and runs without a model of our own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .bench_progress import BenchProgress
from .bench_reading import flag_names, pick_prompts, settings_of
from .bench_running import BenchPlan, argv, compare
from .usage import flag_errors

if TYPE_CHECKING:
    from pathlib import Path

    from ..core.bench.gates import Gates
    from ..core.bench.paired_run import Schedule
    from ..core.bench.peer import PeerSettings
    from ..core.bench.record import BenchReport, PromptSet
    from ..core.bench.server_target import ServerTarget
    from ..core.bench.servers import ServerRequests
    from ..core.bench.variants import SpecVariant
    from .bench_options import PromptSetOptions
    from .console import Console


def open_remote(requests: ServerRequests, ends: ExitStack, output: Console) -> list[ServerTarget]:
    from ..core.bench.servers import open_servers

    if requests.places:
        output.progress("probing the servers", 0.0)
    with flag_errors(flag_names), output.cleared():
        targets = open_servers(requests)
    for target in targets:
        ends.callback(target.close)
    return targets


def start_peers(
    variants: Sequence[SpecVariant],
    requests: ServerRequests,
    ends: ExitStack,
    settings: PeerSettings,
) -> list[ServerTarget]:
    from ..core.bench.servers import PeerTarget

    targets: list[ServerTarget] = []
    for variant in variants:
        own = replace(settings, spec=variant.options)
        target = PeerTarget(variant.name, own, requests.timeouts)
        ends.callback(target.close)
        targets.append(target)
    return targets


def compare_servers(
    remote: Sequence[ServerTarget],
    given: PromptSet | None,
    work: PromptSetOptions,
    schedule: Schedule,
    gates: Gates,
    save: Path | None,
    output: Console,
) -> BenchReport:
    """The servers against each other. Whether a prompt fits, the server decides."""
    from ..core.bench.provenance import provenance
    from ..core.bench.servers import provenance_of

    prompts = pick_prompts(given, work, lambda: remote[0].service.can_chat)
    settings, progress = settings_of(work, prompts), BenchProgress(output)
    known = provenance(argv(), schedule.seed) | provenance_of(remote[0])
    with output.cleared():
        plan = BenchPlan(prompts, settings, schedule, gates, save, progress)
        return compare(remote, known, plan)
