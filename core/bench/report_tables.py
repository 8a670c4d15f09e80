"""The tables of a report and of a comparison: what was gained, why, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from .comparing import ComparedRow, Comparison
from .record import BenchReport, Interval, Phases, Summary, TimeSpread
from .tables import TextTable

_PLACES: Final = 8  # of a draft
_MIB: Final = 1 << 20
_TEXTS: Final = {None: "", True: "equal", False: "DIFFER"}
_COUNTED: Final = (
    ("tokens", "predicted"), ("prompt", "prompt"), ("drafts", "drafts"), ("drafted", "drafted"),
    ("accepted", "accepted"), ("by place", "per_pos"),
)  # fmt: skip

_Column = tuple[str, Callable[[Summary], str]]
_CONFIGURATION: Final[_Column] = ("configuration", lambda s: s.configuration)


def as_markdown(report: BenchReport) -> str:
    lines = [*head_lines(report)]
    for table in report_tables(report):
        lines += ["", *([f"{table.title}:", ""] if table.title else []), *table.markdown()]
    return "".join(f"{line}\n" for line in lines)


def head_lines(report: BenchReport) -> Iterator[str]:
    """Lines on what was measured, where and how."""
    known, settings = report.provenance, report.settings
    model, where = (
        f"{known.get(name)} ({more})" if (more := known.get(other)) else str(known.get(name))
        for name, other in (("model_name", "model_type"), ("device", "cpu_kernels"))
    )
    yield f"{model}, {where}, {known.get('cpu_info')}"
    repetitions = max((len(each.times.samples_ts) for each in report.summaries), default=0)
    n = len({sample.prompt for sample in report.samples})
    how = "greedy" if not settings.temperature else f"temperature {settings.temperature:g}"
    ran = f"{n} prompts, {repetitions} repetitions, " if n else ""
    yield (
        f"{ran}prompt set {report.prompt_set} ({report.prompt_set_sha256[:8]}), {how}, seed "
        f"{settings.seed}; intervals are 95 %"
    )


def report_tables(report: BenchReport) -> Iterator[TextTable]:
    """Those that have rows. The first has no title."""
    yield from (table for table in _all_tables(report) if table.rows)


def _all_tables(report: BenchReport) -> Iterator[TextTable]:
    main = report.with_fewest_users()
    drafting = [each for each in main if each.counts.draft_n]
    yield TextTable.of("", main, _speed_columns(report))
    yield _categories(report)
    differing = [each for each in report.summaries if each.counts.first_difference]
    differing = [each for each in differing if not each.category]
    yield TextTable.of("First difference of texts", differing, _DIFFERENCE)
    yield TextTable.of("Drafts", drafting, _DRAFTS)
    places = "Accepted by place, of all drafts"
    yield _by_place(places, drafting, lambda s: s.counts.accept_per_pos)
    places = "Accepted by place, where the one before was"
    yield _by_place(places, drafting, lambda s: s.counts.accept_if_reached)
    yield _histogram(drafting)
    yield _sources(main)
    yield TextTable.of("ms per round", (s for s in main if s.times.round_ms is not None), _ROUND)
    yield TextTable.of("Latency, ms", main, _LATENCY)
    if len({each.concurrency for each in report.summaries}) > 1:
        every = [each for each in report.summaries if not each.category]
        yield TextTable.of("Users at once", every, _user_columns(report))
    yield TextTable.of("Synthetic acceptance", report.curve, [
        ("drafts of", lambda p: str(p.n_max)), ("tokens/round", lambda p: f"{p.mean_len:.2f}"),
        ("speed-up", lambda p: _ratio(p.speedup)), ("interval", lambda p: _range(p.speedup)),
        ("ms per round", lambda p: _ms(p.round_ms)),
        ("break-even", lambda p: _optional(p.break_even_len)),
    ])  # fmt: skip
    yield _counted(report)
    yield _memory(report)


def comparison_markdown(found: Comparison) -> str:
    lines = _notes(found) + list(TextTable.of("", found.rows, _COMPARED).markdown()) + [""]
    if found.has_speeds:
        lines.append("B / A: decoding, with its 95% interval. Speed-ups: against the own baseline.")
    return "\n".join(lines) + "\n"


def _notes(found: Comparison) -> list[str]:
    lines = []
    if found.machines:
        lines.append("Speeds are not compared, because these differ (--force shows them anyway):")
        lines += [f"- {each.line}" for each in found.machines]
    if found.others:
        lines.append("Also different:")
        lines += [f"- {each.line}" for each in found.others]
    lines += [f"Warning: {line}" for line in found.warnings]
    for name, configurations in (("A", found.only_a), ("B", found.only_b)):
        if configurations:
            lines.append(f"Only in {name}: {', '.join(configurations)}")
    return [*lines, ""] if lines else []


# Cells --------------------------------------------------------------------------------------------


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.{digits}g}"


def _ms(value: float) -> str:
    return _number(value, 3)


def _optional(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _ratio(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.value:.2f}x"


def _range(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.low:.3f}-{interval.high:.3f}"


# Columns ------------------------------------------------------------------------------------------


def _percentiles(name: str, spread: Callable[[Summary], TimeSpread | None]) -> list[_Column]:
    return [
        (f"{name} p50", lambda s: "" if (found := spread(s)) is None else _ms(found.p50)),
        ("p95", lambda s: "" if (found := spread(s)) is None else _ms(found.p95)),
    ]


_MEAN_LEN: Final[_Column] = ("tokens/round", lambda s: _optional(s.counts.mean_len))
_SAME_TEXTS: Final[_Column] = ("texts", lambda s: _TEXTS[s.counts.identical])
_FIRST_TOKEN: Final = _percentiles("first token", lambda s: s.times.ttft)
_DIFFERENCE: Final[list[_Column]] = [
    _CONFIGURATION,
    ("users", lambda s: str(s.concurrency)),
    ("where", lambda s: s.counts.first_difference),
]
_DRAFTS: Final[list[_Column]] = [
    _CONFIGURATION,
    ("rounds", lambda s: _optional(s.counts.rounds)),
    ("with draft", lambda s: _optional(s.counts.drafts)),
    ("drafted", lambda s: _optional(s.counts.draft_n)),
    ("accepted", lambda s: _optional(s.counts.draft_n_accepted)),
    ("rate", lambda s: _share(s.counts.accept_rate)),
    _MEAN_LEN,
    ("of drafted", lambda s: _optional(s.counts.mean_len_drafted)),
    ("break-even", lambda s: _optional(s.times.break_even_len)),
    ("repeats", lambda s: "exactly" if s.counts.repeats else "no"),
]
_LATENCY: Final[list[_Column]] = [
    _CONFIGURATION,
    *_FIRST_TOKEN,
    *_percentiles("chunk", lambda s: s.times.itl_chunk),
    *_percentiles("token", lambda s: s.times.itl_token),
    ("prompt t/s", lambda s: _number(s.times.prompt_ts)),
]


def _phase(name: str) -> _Column:
    return name, lambda s: "" if s.times.phases is None else _ms(getattr(s.times.phases, name))


_ROUND: Final[list[_Column]] = [
    _CONFIGURATION,
    ("round", lambda s: _ms(s.times.round_ms or 0.0)),
    *map(_phase, Phases._fields),
]
_COMPARED: Final[list[tuple[str, Callable[[ComparedRow], str]]]] = [
    ("configuration", lambda r: r.configuration),
    ("category", lambda r: r.category or "all"),
    ("users", lambda r: str(r.concurrency)),
    ("A tokens/s", lambda r: _number(r.a.times.avg_ts)),
    ("B tokens/s", lambda r: _number(r.b.times.avg_ts)),
    ("B / A", lambda r: "" if r.change is None else f"{r.change.value:.3f}x"),
    ("interval", lambda r: _range(r.change)),
    ("A speed-up", lambda r: _ratio(r.a.times.speedup)),
    ("B speed-up", lambda r: _ratio(r.b.times.speedup)),
    ("A tokens/round", lambda r: _optional(r.a.counts.mean_len)),
    ("B tokens/round", lambda r: _optional(r.b.counts.mean_len)),
    ("A accepted", lambda r: _share(r.a.counts.accept_rate)),
    ("B accepted", lambda r: _share(r.b.counts.accept_rate)),
    ("same texts", lambda r: f"{r.n_same} of {r.n_texts}"),
]


def _gain_columns(report: BenchReport) -> list[_Column]:
    """Against the baseline, whose own speed-up is 1."""

    def gain(summary: Summary) -> str:
        """The speed-up, without an interval where there are too few pairs for one."""
        if summary.configuration == report.baseline:
            return "1"
        if summary.times.speedup is not None:
            return _ratio(summary.times.speedup)
        base = report.summary(report.baseline, summary.category, summary.concurrency)
        if base is None or not base.times.avg_ts:
            return ""
        return f"{summary.times.avg_ts / base.times.avg_ts:.2f}x"

    return [("speed-up", gain), ("interval", lambda s: _range(s.times.speedup))]


def _speed_columns(report: BenchReport) -> list[_Column]:
    def spread(summary: Summary) -> str:
        times = summary.times
        return _number(times.stddev_ts) if len(times.samples_ts) > 1 else ""

    def with_prompt(summary: Summary) -> str:
        is_base = summary.configuration == report.baseline
        return "1" if is_base else _ratio(summary.times.wall_speedup)

    return [
        _CONFIGURATION,
        ("t/s", lambda s: _number(s.times.avg_ts)),
        ("±", spread),
        *_gain_columns(report),
        ("with prompt", with_prompt),
        ("drift", lambda s: "" if s.times.drift is None else f"{s.times.drift:.2f}x"),
        _SAME_TEXTS,
    ]


def _user_columns(report: BenchReport) -> list[_Column]:
    return [
        ("users", lambda s: str(s.concurrency)),
        _CONFIGURATION,
        ("t/s per user", lambda s: _number(s.times.avg_ts)),
        ("all together", lambda s: _number(s.times.aggregate_ts)),
        *_gain_columns(report),
        _MEAN_LEN,
        *_FIRST_TOKEN,
        _SAME_TEXTS,
    ]


# Tables -------------------------------------------------------------------------------------------


def _categories(report: BenchReport) -> TextTable:
    rows = [each for name in report.shown_categories() for each in report.with_fewest_users(name)]
    if len(report.configurations) < 2:
        rows = []
    columns = [
        ("category", lambda s: s.category), *_speed_columns(report)[:-2], _MEAN_LEN,
        ("rate", lambda s: _share(s.counts.accept_rate)), *_FIRST_TOKEN, _SAME_TEXTS,
    ]  # fmt: skip
    return TextTable.of("Speed-up by category", rows, columns)


def _by_place(
    title: str, summaries: Sequence[Summary], rates: Callable[[Summary], list[float]]
) -> TextTable:
    def place(i: int) -> _Column:
        return str(i + 1), lambda s: f"{rates(s)[i]:.3f}" if i < len(rates(s)) else ""

    return TextTable.of(title, summaries, [_CONFIGURATION, *map(place, range(_PLACES))])


def _histogram(summaries: Sequence[Summary]) -> TextTable:
    def accepted(n: int) -> _Column:
        return str(n), lambda s: "".join(map(str, s.counts.histogram[n : n + 1]))

    more: _Column = ("more", lambda s: str(sum(s.counts.histogram[_PLACES + 1 :]) or ""))
    columns = [_CONFIGURATION, *map(accepted, range(_PLACES + 1)), more]
    return TextTable.of("Drafts by how much of them was accepted", summaries, columns)


def _sources(summaries: Sequence[Summary]) -> TextTable:
    rows = [
        [each.configuration, name, str(source.drafted), str(source.accepted),
         _share(source.accepted / source.drafted) if source.drafted else "", _ms(source.ms)]
        for each in summaries
        for name, source in each.counts.by_source.items()
    ]  # fmt: skip
    heads = ["configuration", "source", "drafted", "accepted", "rate", "ms in all"]
    return TextTable("By source", heads, rows if len(rows) > 1 else [])


def _counted(report: BenchReport) -> TextTable:
    """The counts of the streams beside those of the server's own counters."""
    rows = []
    for each in report.configurations:
        here, there = each.details.get("counted_here"), each.details.get("counters")
        if isinstance(here, dict) and isinstance(there, dict):
            for by, counts in (("streams", here), ("/metrics", there)):
                cells = [_count_cell(counts.get(name)) for _, name in _COUNTED]
                rows.append([each.name, by, *cells])
    heads = ["configuration", "by", *(head for head, _ in _COUNTED)]
    return TextTable("Counted here, and by the servers themselves", heads, rows)


def _count_cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value[:_PLACES]))
    return "" if value is None else str(value)


def _memory(report: BenchReport) -> TextTable:
    names = list(dict.fromkeys(name for each in report.configurations for name in each.memory))
    rows = []
    for each in report.configurations:
        sizes = [each.memory.get(name) for name in names]
        shown = ["" if size is None else f"{size / _MIB:.1f}" for size in sizes]
        rows.append([each.name, *shown, f"{sum(each.memory.values()) / _MIB:.1f}"])
    return TextTable("Memory, MiB", ["configuration", *names, "all"], rows if names else [])
