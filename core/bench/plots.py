"""What the page draws of a report: figures with captions, in sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import svg
from .record import BenchReport, Sample, Summary, TimeSpread
from .scale import short
from .svg import Line, Row
from .words import alone, categories

ALL = "all"
_PLACES = 12  # of a draft
_DOTS = 400  # of one series: a long run is thinned out


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    caption: str
    svg: str


def sections(report: BenchReport) -> list[tuple[str, list[Figure]]]:
    """Those without data are empty."""
    return [
        ("Speed-up", speedups(report)),
        ("Acceptance", acceptance(report)),
        ("Latency", latency(report)),
        ("Time of a round", phases(report)),
        ("More users", users(report)),
        ("Speed-up against acceptance", curve(report)),
        ("Over time", drift(report)),
    ]


def series_of(report: BenchReport) -> dict[str, int]:
    """The same colour everywhere."""
    return {each.name: i for i, each in enumerate(report.configurations)}


def speedups(report: BenchReport) -> list[Figure]:
    """All configurations, then each by category."""
    colours = series_of(report)
    others = [each for each in alone(report) if each.configuration != report.baseline]
    rows = [row for each in others if (row := _speedup_row(each, each.configuration, colours))]
    figures = []
    if rows:
        title = "All prompts"
        caption = f"Decoding against {report.baseline}, 95% intervals."
        figures.append(Figure(title, caption, svg.intervals(title, rows, "speed-up", "x", at=1.0)))
    for each in others:
        rows = _by_category(report, each, colours)
        if len(rows) > 2:
            title = f"{each.configuration}, by category"
            drawn = svg.intervals(title, rows, "speed-up", "x", at=1.0)
            figures.append(Figure(title, f"Against {report.baseline}.", drawn))
    return figures


def _by_category(report: BenchReport, overall: Summary, colours: dict[str, int]) -> list[Row]:
    found = [(ALL, overall)]
    for category in categories(report):
        summary = report.summary(overall.configuration, category, overall.concurrency)
        if summary is not None:
            found.append((category, summary))
    return [row for name, each in found if (row := _speedup_row(each, name, colours))]


def _speedup_row(summary: Summary, name: str, colours: dict[str, int]) -> Row | None:
    gain = summary.times.speedup
    if gain is None:
        return None
    series = colours.get(summary.configuration, 0)
    return Row(name, gain.low, gain.value, gain.high, series, f"{gain.value:.2f}x")


def acceptance(report: BenchReport) -> list[Figure]:
    colours = series_of(report)
    drafting = [each for each in alone(report) if each.counts.accept_per_pos]
    figures = []
    if drafting:
        title = "Accepted, by place in the draft"
        drawn = svg.lines(
            title,
            [_places(each, each.counts.accept_per_pos, colours) for each in drafting],
            ("place", "share"),
            ticks=_ticks([each.counts.accept_per_pos for each in drafting]),
        )
        figures.append(
            Figure(title, "Of all drafts, those whose tokens held to this place.", drawn)
        )
    reached = [each for each in drafting if each.counts.accept_if_reached]
    if reached:
        title = "Accepted where the one before was"
        drawn = svg.lines(
            title,
            [_places(each, each.counts.accept_if_reached, colours) for each in reached],
            ("place", "share"),
            ticks=_ticks([each.counts.accept_if_reached for each in reached]),
        )
        figures.append(Figure(title, "How good the drafter is at each place.", drawn))
    figures += _histogram(alone(report), colours)
    return figures


def _places(summary: Summary, rates: Sequence[float], colours: dict[str, int]) -> Line:
    points = [(float(i), rate) for i, rate in enumerate(rates[:_PLACES], 1)]
    return Line(summary.configuration, points, colours.get(summary.configuration, 0))


def _ticks(rates: Sequence[Sequence[float]]) -> list[float]:
    longest = min(_PLACES, max(map(len, rates)))
    return [float(place) for place in range(1, longest + 1)]


def _histogram(summaries: Sequence[Summary], colours: dict[str, int]) -> list[Figure]:
    counted = [each for each in summaries if sum(each.counts.histogram)]
    if not counted:
        return []
    longest = max(len(each.counts.histogram) for each in counted)
    edge = min(longest, 2 * _PLACES)
    names = [str(i) for i in range(edge - 1)] + (
        [f"{edge - 1}+"] if edge < longest else [str(edge - 1)]
    )
    series = [
        (
            each.configuration,
            colours.get(each.configuration, 0),
            _shares(each.counts.histogram, edge),
        )
        for each in counted
    ]
    title = "Accepted tokens per draft"
    drawn = svg.bars(title, names, series, ("accepted", "% of drafts"), "%")
    return [Figure(title, "How many tokens of a draft held.", drawn)]


def _shares(histogram: Sequence[int], edge: int) -> list[float]:
    whole = [*histogram[: edge - 1], sum(histogram[edge - 1 :])]
    return [100 * n / sum(histogram) for n in whole]


def latency(report: BenchReport) -> list[Figure]:
    colours = series_of(report)
    kinds = (
        ("Time to the first token", "ttft"),
        ("Between tokens", "itl_token"),
        ("Between chunks", "itl_chunk"),
    )
    captions = {
        "ttft": "From the request to its first token: median to 95th percentile.",
        "itl_token": "Each token an equal part of its chunk: median to 95th percentile.",
        "itl_chunk": "As they arrive, several tokens at once: median to 95th percentile.",
    }
    figures = []
    for title, name in kinds:
        rows = []
        for each in alone(report):
            value: TimeSpread | None = getattr(each.times, name)
            if value is not None:
                series = colours.get(each.configuration, 0)
                note = f"{short(value.p50)} ms"
                row = Row(each.configuration, value.p50, value.p50, value.p95, series, note)
                rows.append(row)
        if rows:
            figures.append(Figure(title, captions[name], svg.intervals(title, rows, "ms")))
    return figures


def phases(report: BenchReport) -> list[Figure]:
    known = [(each, each.times.phases) for each in alone(report) if each.times.phases is not None]
    if not known:
        return []
    parts = ("draft", "verify", "sampling", "settle", "other")
    rows = [(each.configuration, list(found)) for each, found in known if found is not None]
    title = "Where the time goes"
    drawn = svg.stacks(title, rows, parts, "ms per round")
    return [Figure(title, "Per pass of the target and all that belongs to it.", drawn)]


def users(report: BenchReport) -> list[Figure]:
    colours = series_of(report)
    counts = sorted({each.concurrency for each in report.summaries})
    if len(counts) < 2:
        return []
    figures = []
    for title, field, caption in (
        ("All users together", "aggregate_ts", "Tokens/s of the whole, by users at once."),
        ("Each user", "avg_ts", "Tokens/s that one of them sees."),
    ):
        series = []
        for name, colour in colours.items():
            found = [(n, report.summary(name, "", n)) for n in counts]
            points = [
                (float(n), rate)
                for n, each in found
                if each is not None and (rate := getattr(each.times, field)) is not None
            ]
            if points:
                series.append(Line(name, points, colour))
        if series:
            drawn = svg.lines(title, series, ("users", "tokens/s"), ticks=_xs(series))
            figures.append(Figure(title, caption, drawn))
    return figures


def _xs(series: Sequence[Line]) -> list[float]:
    return sorted({x for line in series for x, _ in line.points})


def curve(report: BenchReport) -> list[Figure]:
    if not report.curve:
        return []
    series = []
    for i, n_max in enumerate(sorted({point.n_max for point in report.curve})):
        own = sorted((p for p in report.curve if p.n_max == n_max), key=lambda p: p.mean_len)
        points = [(p.mean_len, p.speedup.value) for p in own]
        series.append(Line(f"drafts of {n_max}", points, i))
    title = "Speed-up by tokens per round"
    drawn = svg.lines(title, series, ("tokens per round", "speed-up"), at=1.0)
    caption = "Acceptance made up, everything else real: where a line crosses 1, drafting pays."
    return [Figure(title, caption, drawn)]


def drift(report: BenchReport) -> list[Figure]:
    series = []
    for name, colour in series_of(report).items():
        points = [
            (sample.started_s, rate)
            for sample in report.samples
            if sample.configuration == name and (rate := decode_rate(sample)) is not None
        ]
        if len(points) > 1:
            step = max(1, len(points) // _DOTS)
            series.append(Line(name, sorted(points)[::step], colour, has_line=False))
    if not series:
        return []
    title = "Tokens/s of each text"
    drawn = svg.lines(title, series, ("seconds since the start", "tokens/s"))
    return [Figure(title, "A slope that all share is the machine's: heat, or neighbours.", drawn)]


def decode_rate(sample: Sample) -> float | None:
    """None if it does not count, or came all at once."""
    counts = sample.repetition >= 0 and not sample.error
    if not counts or sample.decode_n <= 0 or sample.decode_ms <= 0:
        return None
    return 1000 * sample.decode_n / sample.decode_ms
