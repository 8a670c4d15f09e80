"""From targets and samples to a `BenchReport`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from .gates import Gates, judge
from .machine_noise import warnings_of
from .paired_run import complete, paired
from .record import BenchReport, Configuration, PromptSet, RunSettings, Sample
from .summaries import summarise


def new_report(
    provenance: dict[str, Any],
    prompts: PromptSet,
    settings: RunSettings,
    configurations: Sequence[Configuration],
) -> BenchReport:
    """A report before anything has run. The others are compared with the first configuration."""
    if not prompts.prompts:
        raise ConfigError("there are no prompts to run")
    return BenchReport(
        provenance,
        prompts.name,
        prompts.sha256,
        settings,
        configurations[0].name,
        list(configurations),
        categories=list(prompts.categories),
    )


def fill(
    report: BenchReport, samples: Sequence[Sample], machine: dict[str, Any], seed: int
) -> None:
    """Fill in what was measured so far. `machine`: `MachineLoad.until_now` of the run."""
    names = [each.name for each in report.configurations]
    report.samples = list(samples)
    pairs, timed = list(complete(samples, names)), paired(samples, names)
    report.summaries = summarise(
        pairs,
        timed,
        names,
        report.baseline,
        plains_of(report),
        categories=report.categories,
        seed=seed,
    )
    report.provenance["machine"] = machine
    report.warnings = warnings_of(report.summaries, samples, machine)
    report.warnings += _unrepeated(report)


def judge_report(report: BenchReport, gates: Gates, seed: int) -> None:
    names = [each.name for each in report.configurations]
    report.gates = judge(gates, report, paired(report.samples, names), seed)


def plains_of(report: BenchReport) -> dict[str, str]:
    """For each configuration, that of the same engine without speculation, if there is one."""
    plains: dict[object, str] = {}
    for each in report.configurations:
        if each.details.get("spec_types") == []:
            plains.setdefault(each.details.get("server"), each.name)
    engines = ((each.name, each.details.get("server")) for each in report.configurations)
    return {name: plains[engine] for name, engine in engines if engine in plains}


def _unrepeated(report: BenchReport) -> list[str]:
    """What should have repeated exactly and did not: a fault, here or in the hardware. A
    controller with frozen costs repeats from run to run, but learns from text to text."""
    repeating = {
        each.name
        for each in report.configurations
        if each.repeats and not (each.details.get("options") or {}).get("costs")
    }
    return [
        f"{each.configuration}: counts differ between repetitions, though nothing follows the clock"
        for each in report.summaries
        if each.configuration in repeating
        and not each.category
        and each.concurrency == 1
        and not each.counts.repeats
    ]
