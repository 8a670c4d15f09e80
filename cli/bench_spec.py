"""`spec bench-spec`: configurations of speculation against each other, and gates for CI."""

from __future__ import annotations

import gc
import sys
import time
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
from .bench_output import check_place, save_report, write_report
from .bench_progress import BenchProgress
from .bench_reading import (
    counts,
    flag_names,
    read_gates,
    read_prompt_file,
    read_schedule,
    read_variants,
    settings_of,
    with_usage_errors,
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
    from ..core.bench.record import PromptSet, Report, RunSettings
    from ..core.bench.running import Schedule
    from ..core.bench.variants import Variant
    from ..core.runtime import Runtime

MISSED: Final = 3
INTERRUPTED: Final = 130
SAVED_EVERY_S: Final = 10.0


@takes_flags
def bench_spec(
    models: ModelOptions,
    place: PlaceOptions,
    work: WorkOptions,
    versus: VersusOptions,
    method: MethodOptions,
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
    if results.output not in FORMATS:
        raise typer.BadParameter(f"-o is one of {', '.join(FORMATS)}, got {results.output!r}")
    if results.save is not None:
        check_place(results.save)
    variants, schedule = read_variants(versus), read_schedule(method, work.seed)
    gates = read_gates(limits)
    if versus.synth is not None and gates.judges_figures:
        raise typer.BadParameter("--synth draws a curve, and has nothing that gates could judge")
    given = None if work.prompts is None else read_prompt_file(work.prompts)
    model = models.model or bundled_model()
    wanted = with_usage_errors(partial(common_options, variants))
    with open_runtime(model, place, output, wanted, versus.draft_model) as runtime:
        prompts = choose_prompts(runtime, given, work, is_bundled=models.model is None)
        bench = Bench(runtime, output, schedule, settings_of(work, prompts))
        prompts = bench.fitting(prompts)
        if versus.synth is not None:
            report = bench.sweep(variants, prompts, counts(versus.synth, "--synth", 64), place)
        else:
            report = bench.compare(variants, prompts, gates, place, results.save)
    if results.save is not None:
        save_report(report, results.save)
    write_report(report, results.output, output)
    for warning in report.warnings:
        output.remark(f"warning: {warning}")
    raise typer.Exit(finish(report, output))


def choose_prompts(
    runtime: Runtime, given: PromptSet | None, work: WorkOptions, *, is_bundled: bool
) -> PromptSet:
    from ..core.bench.rendering import Renderer
    from ..core.bench.workloads import BUILT_IN, built_in, selected

    name = work.prompt_set
    if name not in ("auto", *BUILT_IN):
        raise typer.BadParameter(f"--set is auto, {' or '.join(BUILT_IN)}, got {name!r}")
    if given is None:
        if name == "auto":
            is_chat = not is_bundled and Renderer(runtime).has_template
            name = "chat" if is_chat else "code"
        given = built_in(name)
    categories = [each.strip() for text in work.category or () for each in text.split(",")]
    return with_usage_errors(partial(selected, given, categories, work.limit))


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
        from ..core.bench.rendering import fitting

        kept, left_out = fitting(prompts, self.runtime, self.settings)
        if left_out:
            self.output.remark(
                f"left out: {', '.join(left_out)}; up to {max(left_out.values())} tokens do not "
                f"fit into a context of {self.runtime.n_ctx}, see -c"
            )
        if not kept.prompts:
            raise typer.BadParameter("no prompt fits into the context; give a larger -c")
        return kept

    def compare(
        self,
        variants: Sequence[Variant],
        prompts: PromptSet,
        gates: Gates,
        place: PlaceOptions,
        save: Path | None,
    ) -> Report:
        from ..core.bench.baseline import check_comparable
        from ..core.bench.noise import Moment
        from ..core.bench.reporting import configuration_of, fill, judge_report, new_report
        from ..core.bench.running import Runner

        targets = [self.target(variant) for variant in variants]
        configurations = [
            configuration_of(target, variant)
            for target, variant in zip(targets, variants, strict=True)
        ]
        with_usage_errors(lambda: gates.check(configurations, configurations[0].name))
        report = new_report(self.provenance(place), prompts, self.settings, configurations)
        before = gates.baseline
        if before is not None:
            with_usage_errors(lambda: check_comparable(report, before))
        gc.freeze()
        began, seed = Moment.now(), self.schedule.seed
        runner = Runner(targets, prompts.prompts, self.settings, self.schedule, self.progress)
        saved_at = time.perf_counter()

        def keep() -> None:
            nonlocal saved_at
            report.samples = runner.samples
            if save is not None and time.perf_counter() - saved_at > SAVED_EVERY_S:
                save_report(report, save)
                saved_at = time.perf_counter()

        runner.after_each = keep
        try:
            runner.run()
        except KeyboardInterrupt:
            report.provenance["interrupted"] = True
        finally:
            self.progress.close()
        machine = began.until_now()
        for target in targets:
            target.close()
        fill(report, runner.samples, machine, seed)
        n_seen = len({sample.prompt for sample in runner.samples})
        if n_seen < len(prompts.prompts):
            report.warnings.insert(
                0, f"only {n_seen} of {len(prompts.prompts)} prompts were run: it is about those"
            )
        judge_report(report, gates, seed)
        return report

    def sweep(
        self,
        variants: Sequence[Variant],
        prompts: PromptSet,
        lengths: Sequence[int],
        place: PlaceOptions,
    ) -> Report:
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
        return report

    def target(self, variant: Variant) -> LocalTarget:
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
        own = provenance(["spec", *sys.argv[1:]], self.schedule.seed)
        own |= of_runtime(self.runtime) | {"n_threads": threads_of(self.runtime)}
        self.output.clear_progress()
        return own | {"type_k": place.cache_type_k, "type_v": place.cache_type_v}


def finish(report: Report, output: Output) -> int:
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
