"""Plots of characters, for those who do not open a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .record import BenchReport, Interval, Summary
from .scale import AxisScale, scale_for, seen
from .words import alone, categories

_LEVELS: Final = "▁▂▃▄▅▆▇█"
_MOST: Final = 32  # characters of a sparkline
_NAME: Final = 28


def terminal_plots(report: BenchReport, columns: int = 80) -> list[str]:
    """Speed-ups with their intervals, acceptance by place, accepted lengths."""
    if report.curve:
        return _drawn(_points(report), 0, columns, report.baseline)
    shown = alone(report)
    width = min(_NAME, max((len(each.configuration) for each in shown), default=0))
    return [
        *_speedups(report, width, columns),
        *_sparks("accepted by place", _places(shown), width),
        *_sparks("accepted per draft, from 0", _lengths(shown), width),
    ]


def _speedups(report: BenchReport, width: int, columns: int) -> list[str]:
    rows: list[tuple[str, Interval]] = []
    for each in alone(report):
        if each.times.speedup is None:
            continue
        rows.append((each.configuration, each.times.speedup))
        for category in categories(report):
            part = report.summary(each.configuration, category, each.concurrency)
            if part is not None and part.times.speedup is not None:
                rows.append((f"  {category}", part.times.speedup))
    return _drawn(rows, width, columns, report.baseline)


def _points(report: BenchReport) -> list[tuple[str, Interval]]:
    return [
        (f"drafts of {each.n_max}, {each.mean_len:.2f} per round", each.speedup)
        for each in report.curve
    ]


def _drawn(
    rows: Sequence[tuple[str, Interval]], width: int, columns: int, baseline: str
) -> list[str]:
    if not rows:
        return []
    width = min(_NAME, max(width, *(len(name) for name, _ in rows)))
    room = max(12, columns - width - 26)
    ends = seen([v for _, gain in rows for v in gain], [1.0, *(gain.value for _, gain in rows)])
    scale = scale_for(ends, 0, room - 1, also=1.0)
    return [
        f"speed-up against {baseline}, 95% intervals; ┊ is 1x",
        *(f"{_cut(name, width)}  {_bar(gain, scale)}  {_said(gain)}" for name, gain in rows),
    ]


def _bar(gain: Interval, scale: AxisScale) -> str:
    cells = [" "] * (round(scale.end) + 1)
    cells[round(scale(1.0))] = "┊"
    first, last = round(scale(gain.low)), round(scale(gain.high))
    cells[first : last + 1] = "─" * (last + 1 - first)
    cells[round(scale(gain.value))] = "●"
    return "".join(cells)


def _said(gain: Interval) -> str:
    return f"{gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"


def _sparks(title: str, series: Sequence[tuple[str, Sequence[float]]], width: int) -> list[str]:
    """Each scaled by 1, the largest share there can be."""
    if not series:
        return []
    lines = [title]
    for name, values in series:
        said = " ".join(f"{100 * value:.0f}" for value in values[:8])
        more = " …" if len(values) > 8 else ""
        lines.append(f"{_cut(name, width)}  {spark(values[:_MOST])}  {said}{more} %")
    return lines


def spark(shares: Sequence[float]) -> str:
    last = len(_LEVELS) - 1
    return "".join(_LEVELS[min(last, max(0, round(last * share)))] for share in shares)


def _places(summaries: Sequence[Summary]) -> list[tuple[str, Sequence[float]]]:
    return [
        (s.configuration, s.counts.accept_per_pos) for s in summaries if s.counts.accept_per_pos
    ]


def _lengths(summaries: Sequence[Summary]) -> list[tuple[str, Sequence[float]]]:
    found: list[tuple[str, Sequence[float]]] = []
    for each in summaries:
        n = sum(each.counts.histogram)
        if n:
            found.append((each.configuration, [count / n for count in each.counts.histogram]))
    return found


def _cut(name: str, width: int) -> str:
    return name.ljust(width) if len(name) <= width else f"{name[: width - 1]}…"
