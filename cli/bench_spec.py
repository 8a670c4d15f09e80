"""`spec bench-spec`: configurations of speculation against each other, and gates for CI."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import typer

from ..core.errors import ConfigError
from .bench_options import (
    FORMATS,
    GateOptions,
    MethodOptions,
    ReportOptions,
    VersusOptions,
    WorkOptions,
)
from .bench_output import (
    check_place,
    print_charts,
    save_gha,
    save_page,
    save_report,
    write_report,
)
from .bench_progress import BenchProgress
from .bench_reading import (
    check_prompt_set,
    counts,
    flag_names,
    pick_prompts,
    read_gates,
    read_prompt_file,
    read_schedule,
    read_variants,
    settings_of,
    with_usage_errors,
)
from .bench_running import BenchPlan, argv, compare
from .bench_servers import (
    ServerOptions,
    compare_servers,
    open_remote,
    peer_settings,
    read_peers,
    read_wishes,
    start_peers,
)
from .flags import takes_flags
from .loading import bundled_model, open_runtime
from .options import ModelOptions, PlaceOptions, VoiceOptions
from .output import Output, print_failure
from .spec_options import with_dashes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..core.bench.gates import Gates
    from ..core.bench.local import LocalTarget
    from ..core.bench.paired_run import Schedule
    from ..core.bench.record import BenchReport, PromptSet, RunSettings, Target
    from ..core.bench.server_target import RemoteTarget
    from ..core.bench.variants import SpecVariant
    from ..core.runtime import Runtime

MISSED: Final = 3
INTERRUPTED: Final = 130
SHOWN: Final = 5  # prompts that are left out, by name


@takes_flags
def bench_spec(  # noqa: PLR0913 - a group of flags each
    models: ModelOptions,
    place: PlaceOptions,
    work: WorkOptions,
    versus: VersusOptions,
    method: MethodOptions,
    servers: ServerOptions,
    limits: GateOptions,
    results: ReportOptions,
    voice: VoiceOptions,
) -> None:
    """Measure what speculation gains, in pairs, with intervals; fail a job on evidence.

    Every prompt is written by all configurations one right after the other, in random order, with
    empty caches. The report goes to stdout, progress and FAIL lines to stderr. Exit codes: 0 fine,
    1 failed, 2 wrong usage or a baseline that cannot be compared, 3 a gate was missed.
    """
    from ..core.bench.variants import common_options

    output = Output(quiet=voice.quiet, verbose=voice.verbose)
    check_results(results)
    check_prompt_set(work.prompt_set)
    variants, schedule = read_variants(versus), read_schedule(method, work.seed)
    gates = read_gates(limits)
    if versus.synth is not None and gates.judges_figures:
        raise typer.BadParameter("--synth draws a curve, and has nothing that gates could judge")
    given = None if work.prompts is None else read_prompt_file(work.prompts)
    wishes, peers = read_wishes(servers), read_peers(servers)
    if versus.synth is not None and (wishes.places or peers):
        raise typer.BadParameter("--synth is for drafts made here; leave --url and --peer out")
    if servers.stands_alone and models.model is None and versus.vs is None:
        report = compare_servers(wishes, given, work, schedule, gates, results.save, output)
        deliver(report, results, output)
        return
    model = models.model or bundled_model()
    wanted = with_usage_errors(partial(common_options, variants))
    with ExitStack() as ends:
        remote = open_remote(wishes, ends, output)
        runtime = ends.enter_context(open_runtime(model, place, output, wanted, versus.draft_model))
        prompts = choose_prompts(runtime, given, work, is_bundled=models.model is None)
        bench = Bench(runtime, output, schedule, settings_of(work, prompts))
        prompts = bench.fitting(prompts)
        if versus.synth is not None:
            report = bench.sweep(variants, prompts, counts(versus.synth, "--synth", 64), place)
        else:
            settings = peer_settings(
                model, place, versus.draft_model, threads_of(runtime), runtime.n_ctx,
                max(schedule.concurrency),
            )  # fmt: skip
            remote += start_peers(peers, wishes, ends, settings)
            report = bench.compare(variants, prompts, gates, place, results.save, remote)
    deliver(report, results, output)


def check_results(results: ReportOptions) -> None:
    """Before the run, not behind it."""
    if results.output not in FORMATS:
        raise typer.BadParameter(f"-o is one of {', '.join(FORMATS)}, got {results.output!r}")
    places = {"--save": results.save, "--html": results.html, "--gha-json": results.gha_json}
    for flag, path in places.items():
        if path is not None:
            check_place(path, flag)


def deliver(report: BenchReport, results: ReportOptions, output: Output) -> None:
    """To stdout and into files; ends the command with its exit code."""
    if results.save is not None:
        save_report(report, results.save)
    if results.html is not None:
        save_page(report, results.html)
    if results.gha_json is not None:
        save_gha(report, results.gha_json)
    write_report(report, results.output, output)
    if results.plot:
        print_charts(report, output)
    for warning in report.warnings:
        output.remark(f"warning: {warning}")
    raise typer.Exit(finish(report, output))


def choose_prompts(
    runtime: Runtime, given: PromptSet | None, work: WorkOptions, *, is_bundled: bool
) -> PromptSet:
    from ..core.bench.prompt_tokens import Renderer

    return pick_prompts(given, work, lambda: not is_bundled and Renderer(runtime).has_template)


class Bench:
    """One model, and what is done with it."""

    def __init__(
        self, runtime: Runtime, output: Output, schedule: Schedule, settings: RunSettings
    ) -> None:
        self.runtime, self.output = runtime, output
        self.schedule, self.settings = schedule, settings
        self.progress = BenchProgress(output)

    def fitting(self, prompts: PromptSet) -> PromptSet:
        """Those that the context has room for."""
        from ..core.bench.prompt_tokens import fitting

        kept, left_out = fitting(prompts, self.runtime, self.settings)
        if left_out:
            names, n_more = list(left_out)[:SHOWN], len(left_out) - SHOWN
            more = f" and {n_more} more" if n_more > 0 else ""
            self.output.remark(
                f"left out: {', '.join(names)}{more}; up to {max(left_out.values())} tokens do not "
                f"fit into a context of {self.runtime.n_ctx}, see -c"
            )
        if not kept.prompts:
            raise typer.BadParameter("no prompt fits into the context; give a larger -c")
        return kept

    def compare(
        self,
        variants: Sequence[SpecVariant],
        prompts: PromptSet,
        gates: Gates,
        place: PlaceOptions,
        save: Path | None,
        remote: Sequence[RemoteTarget] = (),
    ) -> BenchReport:
        from ..core.bench.reporting import configuration_of
        from ..core.bench.servers import configuration_of_server, unique_names

        targets: list[Target] = [self.target(variant) for variant in variants]
        configurations = [
            configuration_of(target, variant)
            for target, variant in zip(targets, variants, strict=True)
        ]
        targets += remote
        unique_names(targets)
        configurations += [configuration_of_server(each, targets[0]) for each in remote]
        plan = BenchPlan(prompts, self.settings, self.schedule, gates, save, self.progress)
        try:
            return compare(targets, configurations, self.provenance(place), plan)
        finally:
            self.progress.close()

    def sweep(
        self,
        variants: Sequence[SpecVariant],
        prompts: PromptSet,
        lengths: Sequence[int],
        place: PlaceOptions,
    ) -> BenchReport:
        from ..core.bench.reporting import configuration_of, new_report
        from ..core.bench.sweep import sweep
        from ..core.bench.variants import parse_variant

        base = next(each for each in variants if not each.is_plain)
        plain = parse_variant("none")
        target = self.target(plain)
        settings = replace(self.settings, ignore_eos=True)
        configurations = [configuration_of(target, plain)]
        report = new_report(self.provenance(place), prompts, settings, configurations)
        gc.freeze()
        try:
            report.curve = sweep(
                target, self.target, base.options, lengths, prompts.prompts, settings,
                self.schedule, self.progress,
            )  # fmt: skip
        except ConfigError as error:
            raise typer.BadParameter(flag_names(str(error))) from None
        finally:
            self.progress.close()
        if not report.curve:
            report.warnings.append("too few pairs for a curve; give more prompts or repetitions")
        return report

    def target(self, variant: SpecVariant) -> LocalTarget:
        from ..core.bench.local import LocalTarget

        try:
            target = LocalTarget(self.runtime, variant)
            target.prepare(self.schedule.concurrency[0])
        except ConfigError as error:
            message = with_dashes(str(error))
            raise typer.BadParameter(f"--vs {variant.name}: {message}") from None
        finally:
            self.output.clear_progress()
        return target

    def provenance(self, place: PlaceOptions) -> dict[str, object]:
        from ..core.bench.provenance import of_runtime, provenance

        self.output.progress("hashing the model", 0.0)
        own = provenance(argv(), self.schedule.seed)
        own |= of_runtime(self.runtime) | {"n_threads": threads_of(self.runtime)}
        self.output.clear_progress()
        return own | {"type_k": place.cache_type_k, "type_v": place.cache_type_v}


def finish(report: BenchReport, output: Output) -> int:
    """The lines of gates, and the exit code."""
    missed = [gate for gate in report.gates if not gate.ok]
    for gate in report.gates:
        if gate.ok:
            output.remark(f"ok   {gate.gate} {gate.line}")
    for gate in missed:
        print_failure(f"FAIL {gate.gate} {gate.line}")
    if report.provenance.get("interrupted"):
        return INTERRUPTED
    if missed:
        return MISSED
    return int(any(sample.error for sample in report.samples))


def threads_of(runtime: Runtime) -> int | None:
    return getattr(runtime.backend, "n_threads", None)
