"""Running the pairs of `spec bench-spec`, whatever writes the texts."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from .bench_output import save_report
from .bench_reading import flag_names
from .usage import flag_errors

if TYPE_CHECKING:
    from ..core.bench.gates import Gates
    from ..core.bench.local import LocalTarget
    from ..core.bench.paired_run import RunProgress, Schedule
    from ..core.bench.record import BenchReport, PromptSet, RunSettings
    from ..core.bench.server_target import ServerTarget

SAVED_EVERY_S: Final = 10.0


class BenchPlan(Struct, frozen=True):
    """What is the same for all configurations."""

    prompts: PromptSet
    settings: RunSettings
    schedule: Schedule
    gates: Gates
    save: Path | None
    show: Callable[[RunProgress], None]


def compare(
    targets: Sequence[LocalTarget | ServerTarget], provenance: dict[str, object], plan: BenchPlan
) -> BenchReport:
    """The first is what the others are compared with. All are closed at the end."""
    from ..core.bench.machine_noise import MachineLoad
    from ..core.bench.paired_run import PairedRun
    from ..core.bench.reporting import fill, judge_report, new_report
    from ..core.bench.run_differences import check_comparable
    from ..core.bench.servers import finish_servers, unique_names

    gates, seed = plan.gates, plan.schedule.seed
    unique_names(targets)
    configurations = [target.configuration(targets[0]) for target in targets]
    with flag_errors(flag_names):
        gates.check(configurations, configurations[0].name)
        report = new_report(provenance, plan.prompts, plan.settings, configurations)
        if gates.baseline is not None:
            check_comparable(report, gates.baseline)
    gc.freeze()
    began = MachineLoad.now()
    runner = PairedRun(targets, plan.prompts.prompts, plan.settings, plan.schedule, plan.show)
    saved_at = time.perf_counter()

    def keep() -> None:
        nonlocal saved_at
        report.samples = runner.samples
        if plan.save is not None and time.perf_counter() - saved_at > SAVED_EVERY_S:
            save_report(report, plan.save)
            saved_at = time.perf_counter()

    runner.after_each = keep
    try:
        runner.run()
    except KeyboardInterrupt:
        report.provenance["interrupted"] = True
    machine = began.until_now()
    for target in targets:
        target.close()
    fill(report, runner.samples, machine, seed)
    finish_servers(report, targets)
    n_all, n_seen = len(plan.prompts.prompts), len({each.prompt for each in runner.samples})
    if n_seen < n_all:
        line = f"only {n_seen} of {n_all} prompts were run: it is about those"
        report.warnings.insert(0, line)
    judge_report(report, gates, seed)
    return report


def argv() -> list[str]:
    """The command line without keys: reports are passed on."""
    from ..core.bench.servers import without_keys

    return without_keys(["spec", *sys.argv[1:]])
