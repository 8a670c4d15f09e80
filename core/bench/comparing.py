"""Two reports beside each other: what has changed from A to B, as far as they can be compared.

Prompts are paired by their names and lengths. Speeds are compared only between runs of the same
model on the same machine, as deterministic figures may be between any two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import ConfigError
from .counts import first_texts
from .paired_run import complete, paired
from .record import BenchReport, Interval, Sample, Summary
from .regressions import regressions
from .run_differences import (
    RunDifference,
    build_differences,
    machine_differences,
    settings_differences,
)
from .summaries import summarise

_Key = tuple[str, int]


class ComparedRow(Struct):
    """One configuration, category ("" for all) and number of users."""

    configuration: str
    category: str
    concurrency: int
    n_prompts: int  # that both wrote
    a: Summary
    b: Summary
    change: Interval | None = None  # of the decoding rate, B by A
    n_texts: int = 0
    n_same: int = 0  # texts that are equal in both


class Comparison(Struct):
    rows: list[ComparedRow] = field(default_factory=list)
    machines: list[RunDifference] = field(default_factory=list)  # not empty: no speeds
    others: list[RunDifference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)  # configurations
    only_b: list[str] = field(default_factory=list)

    @property
    def has_speeds(self) -> bool:
        return not self.machines


def compare_reports(
    a: BenchReport, b: BenchReport, *, force: bool = False, seed: int = 0
) -> Comparison:
    """`force`: speeds of different machines or models, too."""
    machines = list(machine_differences(a, b))
    found = Comparison(others=[*build_differences(a, b), *settings_differences(a, b)])
    if force:
        found.others = machines + found.others
        if machines:
            found.warnings.append("speeds of different machines or models: --force shows them")
    else:
        found.machines = machines
    names = [each.name for each in a.configurations if each.name in _names(b)]
    found.only_a = [name for name in _names(a) if name not in names]
    found.only_b = [name for name in _names(b) if name not in names]
    if not names:
        raise ConfigError(
            f"the reports have no configuration in common: A has {', '.join(_names(a))}; "
            f"B has {', '.join(_names(b))}"
        )
    a, b, n_shared = _on_shared_prompts(a, b, found)
    a, b = _summarised(a, seed), _summarised(b, seed)
    found.rows = list(_rows(a, b, names, n_shared, with_speeds=found.has_speeds, seed=seed))
    return found


def _names(report: BenchReport) -> list[str]:
    return [each.name for each in report.configurations]


def _on_shared_prompts(
    a: BenchReport, b: BenchReport, found: Comparison
) -> tuple[BenchReport, BenchReport, int]:
    """Samples of the prompts that both have: by name, and by length where the sets differ."""
    mine, theirs = _prompts(a), _prompts(b)
    if a.prompt_set_sha256 == b.prompt_set_sha256:
        shared = {name for name, _ in mine} & {name for name, _ in theirs}
    else:
        both = mine & theirs
        shared = {name for name, _ in both}
        n_all = len({name for name, _ in mine | theirs})
        found.warnings.append(
            f"the prompt sets differ ({a.prompt_set}, {b.prompt_set}): compared are the "
            f"{len(shared)} of {n_all} prompts that have the same name and length in both"
        )
    if not shared:
        raise ConfigError(
            f"the reports have no prompt in common: A is of {a.prompt_set} "
            f"({a.prompt_set_sha256[:8]}), B of {b.prompt_set} ({b.prompt_set_sha256[:8]})"
        )
    kept = [[s for s in each.samples if s.prompt in shared] for each in (a, b)]
    return replace(a, samples=kept[0]), replace(b, samples=kept[1]), len(shared)


def _prompts(report: BenchReport) -> set[tuple[str, int]]:
    """(name, tokens of its first turn)"""
    return {(s.prompt, s.prompt_n) for s in report.samples if not s.turn and not s.error}


def _summarised(report: BenchReport, seed: int) -> BenchReport:
    """Anew, from the samples that are left."""
    names = _names(report)
    samples = list(complete([s for s in report.samples if s.repetition >= 0], names))
    left = {sample.category for sample in samples}
    known = [name for name in report.categories if name in left]
    summaries = summarise(
        samples, paired(report.samples, names), names, report.baseline, {}, categories=known,
        seed=seed,
    )  # fmt: skip
    return replace(report, samples=samples, summaries=summaries)


def _rows(
    a: BenchReport,
    b: BenchReport,
    names: Sequence[str],
    n_prompts: int,
    *,
    with_speeds: bool,
    seed: int,
) -> Iterator[ComparedRow]:
    same = {name: _texts(a, b, name) for name in names}
    for mine in a.summaries:
        theirs = b.summary(mine.configuration, mine.category, mine.concurrency)
        if theirs is None or mine.configuration not in names:
            continue
        own = [
            is_same
            for (_, category, concurrency), is_same in same[mine.configuration].items()
            if mine.category in ("", category) and concurrency == mine.concurrency
        ]
        change = _change(a, b, mine, theirs, seed) if with_speeds else None
        n = n_prompts if not mine.category else len(own)
        yield ComparedRow(
            mine.configuration, mine.category, mine.concurrency, n, mine, theirs, change,
            n_texts=len(own), n_same=sum(own),
        )  # fmt: skip


def _texts(a: BenchReport, b: BenchReport, name: str) -> dict[tuple[_Key, str, int], bool]:
    """Is the text of a prompt's turn the same in both?"""
    found = {}
    for concurrency in sorted({s.concurrency for s in a.samples}):
        mine, theirs = (
            first_texts(
                s for s in each.samples if s.configuration == name and s.concurrency == concurrency
            )
            for each in (a, b)
        )
        for key in mine.keys() & theirs.keys():
            one, other = mine[key], theirs[key]
            found[key, one.category, concurrency] = one.output == other.output
    return found


def _change(
    a: BenchReport, b: BenchReport, mine: Summary, theirs: Summary, seed: int
) -> Interval | None:
    """As in the gate against a baseline: repetitions of either run are drawn, not pairs, because
    the runs were not made side by side."""
    now, before = (_only(each, summary) for each, summary in ((b, theirs), (a, mine)))
    timed = paired(now.samples, _names(now))
    for each in regressions(now, before, timed, seed):
        if each.compared is not None and each.what == "tokens/s":
            return each.compared.interval()
    return None


def _only(report: BenchReport, summary: Summary) -> BenchReport:
    """The report as if this category were all there is."""
    samples = [s for s in report.samples if _is_of(s, summary)]
    return replace(report, samples=samples, summaries=[replace(summary, category="")])


def _is_of(sample: Sample, summary: Summary) -> bool:
    return sample.concurrency == summary.concurrency and summary.category in ("", sample.category)
