"""The charts of the page, with captions, in sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from .record import BenchReport, Phases, Sample, Summary
from .scale import short
from .svg_chart import ChartRow, ChartSeries, interval_chart, line_chart, stack_chart

_PLACES: Final = 12  # of a draft
_MAX_DOTS: Final = 400  # of one series: a long run is thinned out
_LATENCIES: Final = (
    ("Time to the first token", "ttft", "From the request to its first token"),
    ("Between tokens", "itl_token", "Each token an equal part of its chunk"),
    ("Between chunks", "itl_chunk", "As they arrive, several tokens at once"),
)


class ReportChart(NamedTuple):
    title: str
    caption: str
    svg: str


def report_charts(report: BenchReport) -> list[tuple[str, list[ReportChart]]]:
    """Charts by section; a section without data is empty."""
    return [
        ("Speed-up", _speedups(report)),
        ("Acceptance", _acceptance(report)),
        ("Latency", _latency(report)),
        ("Time of a round", _phases(report)),
        ("More users", _users(report)),
        ("Speed-up against acceptance", _curve(report)),
        ("Over time", _drift(report)),
    ]


def _colours(report: BenchReport) -> dict[str, int]:
    """The same colour in every chart."""
    return {each.name: i for i, each in enumerate(report.configurations)}


def _speedups(report: BenchReport) -> list[ReportChart]:
    """All configurations, then each by category."""
    colours = _colours(report)

    def marks(summary: Summary, name: str) -> list[ChartRow]:
        gain = summary.times.speedup
        if gain is None:
            return []
        note = f"{gain.value:.2f}x"
        return [ChartRow(name, *gain, colours[summary.configuration], note)]

    charts = []
    main = report.with_fewest_users()
    rows = [mark for each in main for mark in marks(each, each.configuration)]
    if rows:
        title, caption = "All prompts", f"Decoding against {report.baseline}, 95% intervals."
        charts.append(ReportChart(title, caption, interval_chart(title, rows, "speed-up", at=1.0)))
    for each in main:
        parts = [
            report.summary(each.configuration, category, each.concurrency)
            for category in report.shown_categories()
        ]
        rows = marks(each, "all")
        rows += [mark for p in parts if p is not None for mark in marks(p, p.category)]
        if len(rows) > 2:
            title = f"{each.configuration}, by category"
            drawn = interval_chart(title, rows, "speed-up", at=1.0)
            charts.append(ReportChart(title, f"Against {report.baseline}.", drawn))
    return charts


def _acceptance(report: BenchReport) -> list[ReportChart]:
    def chart(
        title: str, caption: str, first: int, axes: tuple[str, str],
        values: Callable[[Summary], Sequence[float]],
    ) -> list[ReportChart]:  # fmt: skip
        colours = _colours(report)
        series = [
            ChartSeries(each.configuration, list(enumerate(found, first)),
                        colours[each.configuration])
            for each in report.with_fewest_users()
            if (found := values(each))
        ]  # fmt: skip
        if not series:
            return []
        drawn = line_chart(title, series, axes, ticks=_values_across(series))
        return [ReportChart(title, caption, drawn)]

    place = ("place", "share")
    return [
        *chart("Accepted, by place in the draft",
               "Of all drafts, those whose tokens were accepted up to this place.", 1, place,
               lambda s: s.counts.accept_per_pos[:_PLACES]),
        *chart("Accepted where the one before was", "How good the drafter is at each place.",
               1, place, lambda s: s.counts.accept_if_reached[:_PLACES]),
        *chart("Accepted tokens per draft", "How many tokens of a draft were accepted; more are "
               "counted with the last.", 0, ("accepted", "% of drafts"), _histogram),
    ]  # fmt: skip


def _histogram(summary: Summary) -> list[float]:
    """Percent of drafts of which 0, 1, … tokens were accepted."""
    counts = summary.counts.histogram
    kept = [*counts[:_PLACES], sum(counts[_PLACES:])] if len(counts) > _PLACES else counts
    return [100 * n / sum(counts) for n in kept] if sum(counts) else []


def _latency(report: BenchReport) -> list[ReportChart]:
    colours, charts = _colours(report), []
    for title, name, caption in _LATENCIES:
        rows = [
            ChartRow(each.configuration, found.p50, found.p50, found.p95,
                     colours[each.configuration], f"{short(found.p50)} ms")
            for each in report.with_fewest_users()
            if (found := getattr(each.times, name)) is not None
        ]  # fmt: skip
        if rows:
            drawn = interval_chart(title, rows, "ms")
            charts.append(ReportChart(title, f"{caption}: median to 95th percentile.", drawn))
    return charts


def _phases(report: BenchReport) -> list[ReportChart]:
    rows = [
        (each.configuration, list(each.times.phases))
        for each in report.with_fewest_users()
        if each.times.phases is not None
    ]
    if not rows:
        return []
    title = "Where the time goes"
    drawn = stack_chart(title, rows, Phases._fields, "ms per round")
    return [ReportChart(title, "Per pass of the target and all that belongs to it.", drawn)]


def _users(report: BenchReport) -> list[ReportChart]:
    counts = sorted({each.concurrency for each in report.summaries})
    if len(counts) < 2:
        return []
    charts = []
    for title, field, caption in (
        ("All users together", "aggregate_ts", "Tokens/s of the whole, by users at once."),
        ("Each user", "avg_ts", "Tokens/s that one of them sees."),
    ):
        series = []
        for name, colour in _colours(report).items():
            points = [
                (float(n), rate)
                for n in counts
                if (each := report.summary(name, "", n)) is not None
                and (rate := getattr(each.times, field)) is not None
            ]
            if points:
                series.append(ChartSeries(name, points, colour))
        if series:
            axes = ("users", "tokens/s")
            drawn = line_chart(title, series, axes, ticks=_values_across(series))
            charts.append(ReportChart(title, caption, drawn))
    return charts


def _values_across(series: Sequence[ChartSeries]) -> list[float]:
    return sorted({x for each in series for x, _ in each.points})


def _curve(report: BenchReport) -> list[ReportChart]:
    if not report.curve:
        return []
    series = []
    for i, n_max in enumerate(sorted({point.n_max for point in report.curve})):
        points = sorted((p.mean_len, p.speedup.value) for p in report.curve if p.n_max == n_max)
        series.append(ChartSeries(f"drafts of {n_max}", points, i))
    title = "Speed-up by tokens per round"
    drawn = line_chart(title, series, ("tokens per round", "speed-up"), at=1.0)
    caption = "Acceptance made up, everything else real: where a line crosses 1, drafting pays."
    return [ReportChart(title, caption, drawn)]


def _drift(report: BenchReport) -> list[ReportChart]:
    series = []
    for name, colour in _colours(report).items():
        points = sorted(
            (sample.started_s, rate)
            for sample in report.samples
            if sample.configuration == name and (rate := _decode_rate(sample)) is not None
        )
        if len(points) > 1:
            step = max(1, len(points) // _MAX_DOTS)
            series.append(ChartSeries(name, points[::step], colour, has_line=False))
    if not series:
        return []
    title = "Tokens/s of each text"
    drawn = line_chart(title, series, ("seconds since the start", "tokens/s"))
    caption = "A slope that all share is the machine's: heat, or neighbours."
    return [ReportChart(title, caption, drawn)]


def _decode_rate(sample: Sample) -> float | None:
    """Tokens/s; None of a warm-up, a failure, and a text that came all at once."""
    counts = sample.repetition >= 0 and not sample.error
    if not counts or sample.decode_n <= 0 or sample.decode_ms <= 0:
        return None
    return 1000 * sample.decode_n / sample.decode_ms
