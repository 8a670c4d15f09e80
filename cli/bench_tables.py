"""A report as Markdown that is also readable in a terminal: what was gained, why, and how sure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..core.bench.tables import Table, markdown

if TYPE_CHECKING:
    from ..core.bench.record import BenchReport, Counts, Interval, Summary, TimeSpread

_PLACES: Final = 8
_MIB: Final = 1 << 20


def tables(report: BenchReport) -> Iterator[str]:
    """Lines, without newlines."""
    from ..core.bench.reconciling import counted_rows

    yield from _head(report)
    if report.summaries:
        yield from _compared(report)
    yield from _section("Synthetic acceptance", _curve(report))
    yield from _section("Counted here, and by the servers themselves", counted_rows(report))
    yield from _section("Memory, MiB", _memory(report))


def _compared(report: BenchReport) -> Iterator[str]:
    users = sorted({each.concurrency for each in report.summaries})
    main = [each for each in report.summaries if not each.category and each.concurrency == users[0]]
    yield from _section("", _speeds(main, report))
    yield from _section("Speed-up by category", _categories(report, users[0]))
    yield from _section("Drafts", _drafts(main))
    yield from _section("Accepted by place, of all drafts", _places(main, "accept_per_pos"))
    reached = _places(main, "accept_if_reached")
    yield from _section("Accepted by place, where the one before was", reached)
    yield from _section("Drafts by how much of them was accepted", _histogram(main))
    yield from _section("By source", _sources(main))
    yield from _section("ms per round", _rounds(main))
    yield from _section("Latency, ms", _latencies(main))
    if len(users) > 1:
        yield from _section("Users at once", _users(report))


def _head(report: BenchReport) -> Iterator[str]:
    known, settings = report.provenance, report.settings
    model, where = (
        f"{known.get(name)} ({more})" if (more := known.get(other)) else str(known.get(name))
        for name, other in (("model_name", "model_type"), ("device", "cpu_kernels"))
    )
    yield f"{model}, {where}, {known.get('cpu_info')}"
    repetitions = max((len(each.times.samples_ts) for each in report.summaries), default=0)
    n = sum(1 for _ in dict.fromkeys(sample.prompt for sample in report.samples))
    how = "greedy" if not settings.temperature else f"temperature {settings.temperature:g}"
    ran = f"{n} prompts, {repetitions} repetitions, " if n else ""
    yield (
        f"{ran}prompt set {report.prompt_set} ({report.prompt_set_sha256[:8]}), {how}, seed "
        f"{settings.seed}; intervals are 95 %"
    )


def _speeds(summaries: Sequence[Summary], report: BenchReport) -> Table:
    table = [["configuration", "t/s", "±", "speed-up", "interval", "with prompt", "drift", "texts"]]
    for each in summaries:
        times = each.times
        is_base = each.configuration == report.baseline
        table.append(
            [
                each.configuration,
                _number(times.avg_ts),
                _number(times.stddev_ts) if len(times.samples_ts) > 1 else "",
                "1" if is_base else _speedup(each, report),
                "" if is_base else _range(times.speedup),
                "1" if is_base else _value(times.wall_speedup),
                "" if times.drift is None else f"{times.drift:.2f}x",
                {None: "", True: "equal", False: "DIFFER"}[each.counts.identical],
            ]
        )
    return _trimmed(table)


def _categories(report: BenchReport, users: int) -> Table:
    names = [each.name for each in report.configurations if each.name != report.baseline]
    categories = list(dict.fromkeys(each.category for each in report.summaries if each.category))
    if not categories or not names:
        return []
    heads = [head for name in names for head in (name, "interval", "tokens/round")]
    table = [["category", f"{report.baseline} t/s", *heads]]
    for category in categories:
        base = report.summary(report.baseline, category, users)
        row = [category, "" if base is None else _number(base.times.avg_ts)]
        for name in names:
            found = report.summary(name, category, users)
            if found is None:
                row += ["", "", ""]
                continue
            mean_len = _optional(found.counts.mean_len)
            row += [_speedup(found, report), _range(found.times.speedup), mean_len]
        table.append(row)
    return table


def _drafts(summaries: Sequence[Summary]) -> Table:
    table = [
        ["configuration", "rounds", "with draft", "drafted", "accepted", "rate", "tokens/round",
         "of drafted", "break-even", "repeats"]
    ]  # fmt: skip
    for each in _drafting(summaries):
        counts = each.counts
        table.append(
            [
                each.configuration,
                _optional(counts.rounds),
                _optional(counts.drafts),
                _optional(counts.draft_n),
                _optional(counts.draft_n_accepted),
                "" if counts.accept_rate is None else f"{counts.accept_rate:.1%}",
                _optional(counts.mean_len),
                _optional(counts.mean_len_drafted),
                _optional(each.times.break_even_len),
                "exactly" if counts.repeats else "no",
            ]
        )
    return table


def _places(summaries: Sequence[Summary], name: str) -> Table:
    rows: Table = []
    for each in _drafting(summaries):
        rates: list[float] = getattr(each.counts, name)
        shown = [f"{rate:.3f}" for rate in rates[:_PLACES]]
        rows.append([each.configuration, *shown, *[""] * (_PLACES - len(shown))])
    return _trimmed([["configuration", *map(str, range(1, _PLACES + 1))], *rows])


def _histogram(summaries: Sequence[Summary]) -> Table:
    rows: Table = []
    for each in _drafting(summaries):
        counts = each.counts.histogram
        shown = [str(n) for n in counts[: _PLACES + 1]]
        more = sum(counts[_PLACES + 1 :])
        rows.append(
            [each.configuration, *shown, *[""] * (_PLACES + 1 - len(shown)), str(more or "")]
        )
    return _trimmed([["configuration", *map(str, range(_PLACES + 1)), "more"], *rows])


def _sources(summaries: Sequence[Summary]) -> Table:
    table = [["configuration", "source", "drafted", "accepted", "rate"]]
    for each in summaries:
        for name, source in each.counts.by_source.items():
            rate = f"{source.accepted / source.drafted:.1%}" if source.drafted else ""
            counted = [str(source.drafted), str(source.accepted), rate]
            table.append([each.configuration, name, *counted])
    return table if len(table) > 2 else []


def _rounds(summaries: Sequence[Summary]) -> Table:
    table = [["configuration", "round", "draft", "verify", "sampling", "settle", "other"]]
    for each in summaries:
        times = each.times
        if times.round_ms is None:
            continue
        phases = [""] * 5 if times.phases is None else [_ms(ms) for ms in times.phases]
        table.append([each.configuration, _ms(times.round_ms), *phases])
    return table


def _latencies(summaries: Sequence[Summary]) -> Table:
    table = [
        ["configuration", "first token p50", "p95", "chunk p50", "p95", "token p50", "p95",
         "prompt t/s"]
    ]  # fmt: skip
    for each in summaries:
        times = each.times
        row = [each.configuration]
        for spread in (times.ttft, times.itl_chunk, times.itl_token):
            row += _percentiles(spread)
        table.append([*row, _number(times.prompt_ts)])
    return table


def _users(report: BenchReport) -> Table:
    table = [["users", "configuration", "t/s per user", "all together", "speed-up", "interval",
              "first token p50", "p95", "texts"]]  # fmt: skip
    for each in report.summaries:
        if each.category:
            continue
        times = each.times
        is_base = each.configuration == report.baseline
        total = times.aggregate_ts if times.aggregate_ts is not None else None
        table.append(
            [
                str(each.concurrency),
                each.configuration,
                _number(times.avg_ts),
                "" if total is None else _number(total),
                "1" if is_base else _speedup(each, report),
                "" if is_base else _range(times.speedup),
                *_percentiles(times.ttft),
                {None: "", True: "equal", False: "DIFFER"}[each.counts.identical],
            ]
        )
    return table


def _curve(report: BenchReport) -> Table:
    if not report.curve:
        return []
    table = [["drafts of", "tokens/round", "speed-up", "interval", "ms per round", "break-even"]]
    for point in report.curve:
        table.append(
            [
                str(point.n_max),
                f"{point.mean_len:.2f}",
                _value(point.speedup),
                _range(point.speedup),
                _ms(point.round_ms),
                _optional(point.break_even_len),
            ]
        )
    return table


def _memory(report: BenchReport) -> Table:
    names = list(dict.fromkeys(name for each in report.configurations for name in each.memory))
    if not names:
        return []
    table = [["configuration", *names, "all"]]
    for each in report.configurations:
        sizes = [each.memory.get(name) for name in names]
        shown = ["" if size is None else f"{size / _MIB:.1f}" for size in sizes]
        table.append([each.name, *shown, f"{sum(each.memory.values()) / _MIB:.1f}"])
    return table


def _drafting(summaries: Sequence[Summary]) -> Iterator[Summary]:
    for each in summaries:
        if has_drafts(each.counts):
            yield each


def has_drafts(counts: Counts) -> bool:
    return bool(counts.draft_n)


def _section(title: str, table: Table) -> Iterator[str]:
    if len(table) < 2:
        return
    yield ""
    if title:
        yield f"{title}:"
        yield ""
    yield from markdown(table)


def _trimmed(table: Table) -> Table:
    """Without columns that are empty."""
    if len(table) < 2:
        return []
    kept = [i for i in range(len(table[0])) if any(row[i] for row in table[1:])]
    return [[row[i] for i in kept] for row in table]


def _percentiles(spread: TimeSpread | None) -> list[str]:
    return ["", ""] if spread is None else [_ms(spread.p50), _ms(spread.p95)]


def _value(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.value:.2f}x"


def _speedup(summary: Summary, report: BenchReport) -> str:
    """Without an interval where there are too few pairs for one."""
    if summary.times.speedup is not None:
        return _value(summary.times.speedup)
    base = report.summary(report.baseline, summary.category, summary.concurrency)
    if base is None or not base.times.avg_ts:
        return ""
    return f"{summary.times.avg_ts / base.times.avg_ts:.2f}x"


def _range(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.low:.3f}-{interval.high:.3f}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _optional(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.2f}"
