"""Charts of characters, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from .record import BenchReport, Interval, Summary
from .scale import AxisScale, scale_for, seen

_LEVELS: Final = "▁▂▃▄▅▆▇█"
_MAX_SPARK: Final = 32  # characters
_MAX_NAME: Final = 28


def text_charts(report: BenchReport, columns: int = 80) -> list[str]:
    """Lines: speed-ups with their intervals, acceptance by place, accepted lengths."""
    if report.curve:
        points = [
            (f"drafts of {each.n_max}, {each.mean_len:.2f} per round", each.speedup)
            for each in report.curve
        ]
        return _intervals(points, 0, columns, report.baseline)
    main = report.with_fewest_users()
    width = min(_MAX_NAME, max((len(each.configuration) for each in main), default=0))
    places = _sparks("accepted by place", main, width, lambda s: s.counts.accept_per_pos)
    lengths = _sparks("accepted per draft, from 0", main, width, _lengths)
    return [*_intervals(_speedups(report), width, columns, report.baseline), *places, *lengths]


def _speedups(report: BenchReport) -> list[tuple[str, Interval]]:
    rows = []
    for each in report.with_fewest_users():
        if each.times.speedup is None:
            continue
        rows.append((each.configuration, each.times.speedup))
        for category in report.shown_categories():
            part = report.summary(each.configuration, category, each.concurrency)
            if part is not None and part.times.speedup is not None:
                rows.append((f"  {category}", part.times.speedup))
    return rows


def _intervals(
    rows: Sequence[tuple[str, Interval]], width: int, columns: int, baseline: str
) -> list[str]:
    if not rows:
        return []
    width = min(_MAX_NAME, max(width, *(len(name) for name, _ in rows)))
    room = max(12, columns - width - 26)
    ends = seen([v for _, gain in rows for v in gain], [1.0, *(gain.value for _, gain in rows)])
    scale = scale_for(ends, 0, room - 1, also=1.0)
    return [
        f"speed-up against {baseline}, 95% intervals; ┊ is 1x",
        *(
            f"{_fitted(name, width)}  {_bar(gain, scale)}  "
            f"{gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"
            for name, gain in rows
        ),
    ]


def _bar(gain: Interval, scale: AxisScale) -> str:
    cells = [" "] * (round(scale.end) + 1)
    cells[round(scale(1.0))] = "┊"
    first, last = round(scale(gain.low)), round(scale(gain.high))
    cells[first : last + 1] = "─" * (last + 1 - first)
    cells[round(scale(gain.value))] = "●"
    return "".join(cells)


def _sparks(
    title: str, summaries: Sequence[Summary], width: int, shares: Callable[[Summary], list[float]]
) -> list[str]:
    """Each scaled by 1, the largest possible share."""
    lines = []
    for summary in summaries:
        if values := shares(summary):
            numbers = " ".join(f"{100 * value:.0f}" for value in values[:8])
            more = " …" if len(values) > 8 else ""
            name = _fitted(summary.configuration, width)
            lines.append(f"{name}  {spark(values[:_MAX_SPARK])}  {numbers}{more} %")
    return [title, *lines] if lines else []


def spark(shares: Sequence[float]) -> str:
    last = len(_LEVELS) - 1
    return "".join(_LEVELS[min(last, max(0, round(last * share)))] for share in shares)


def _lengths(summary: Summary) -> list[float]:
    n = sum(summary.counts.histogram)
    return [count / n for count in summary.counts.histogram] if n else []


def _fitted(name: str, width: int) -> str:
    return name.ljust(width) if len(name) <= width else f"{name[: width - 1]}…"
