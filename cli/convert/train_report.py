"""What a new drafter gains: its table and its verdict, by the pairs of bench-spec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..bench_local import LocalBench
from ..console import Console
from ..open_model import open_runtime
from ..shared_options import PlaceOptions

if TYPE_CHECKING:
    from ...core.bench.record import BenchReport, Prompt
    from ...core.sampling.params import SamplingParams

N_CTX: Final = 1024
N_WRITTEN: Final = 96  # tokens of an answer
A_CATEGORY: Final = 2  # prompts of each
REPEAT: Final = 2
PLAIN = "none"
TABLES: Final = ("", "Speed-up by category", "Accepted by place, of all drafts")


def judge(
    model: Path,
    draft: Path,
    served: str,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    threads: int | None,
    output: Console,
) -> None:
    """`served`: the drafter, by its name in `--spec-type`."""
    from ...core.bench.gates import Gates
    from ...core.bench.paired_run import Schedule
    from ...core.bench.record import PromptSet, RunSettings
    from ...core.bench.report_tables import head_lines, report_tables
    from ...core.bench.variants import common_options, parse_variant
    from ...core.bench.workloads import selected

    variants = [parse_variant(text) for text in (PLAIN, served, f"{served}:n=3,fixed")]
    given = PromptSet("held-out", tuple(prompts))
    place = PlaceOptions(ctx_size=N_CTX, threads=threads)
    with open_runtime(model, place, output, common_options(variants), [draft]) as runtime:
        settings = RunSettings(params.temperature, params.seed, N_WRITTEN, ignore_eos=False)
        schedule = Schedule(repeat=REPEAT, seed=params.seed)
        bench = LocalBench(runtime, output, schedule, settings, place)
        chosen = selected(bench.fitting(given), (), A_CATEGORY)
        report = bench.compare(variants, chosen, Gates(), None)
    for line in head_lines(report):
        output.line(line)
    for table in report_tables(report):
        if table.title in TABLES:
            for line in ("", *([f"{table.title}:", ""] if table.title else []), *table.markdown()):
                output.line(line)
    output.line("")
    output.line(verdict(report, served))


def verdict(report: BenchReport, served: str) -> str:
    """Whether texts come sooner with the drafter, as it is served."""
    found = next(
        each.times.speedup
        for each in report.summaries
        if each.configuration == served and not each.category
    )
    if found is None:
        return "The texts are too few to say what the drafter gains."
    figures = f"{found.value:.2f}x of plain decoding ({found.low:.2f} to {found.high:.2f})"
    if found.low > 1:
        return f"The drafter gains: {figures}."
    if found.high < 1:
        return f"The drafter gains nothing, and slows texts down: {figures}."
    return f"The drafter gains nothing that can be seen here: {figures}."
