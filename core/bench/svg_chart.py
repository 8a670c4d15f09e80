"""Charts as inline SVG. Colours and fonts are those of the page: classes `s0`, `s1`, … for series.

A chart is 420 units wide, about the width of a phone: there a unit is a pixel, and larger screens
show several charts beside each other instead of larger letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from msgspec import Struct, field

from .scale import AxisScale, scale_for, seen, short

WIDTH: Final = 420
N_COLOURS: Final = 8
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 40
_ROW: Final = 26  # height
_NAMES: Final = 138  # width of the names of rows
_ROW_END: Final = WIDTH - _RIGHT - 46
_MAX_NAME: Final = 16  # characters of a row's name
_MAX_LEGEND: Final = 24  # characters of a series' name


class ChartRow(Struct, frozen=True):
    """A mark in a chart of intervals."""

    name: str
    low: float
    value: float
    high: float
    series: int
    note: str


class ChartSeries(Struct, frozen=True):
    name: str
    points: Sequence[tuple[float, float]]
    series: int
    has_line: bool = True


class SvgDrawing(Struct):
    title: str
    height: float
    parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def text(self, x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> None:
        css = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{escape(text)}</text>'
        )

    def dot(self, x: float, y: float, series: int, tip: str, size: float = 4) -> None:
        self.parts.append(
            f'<circle class="dot {_colour(series)}" cx="{x:.1f}" cy="{y:.1f}" r="{size:g}">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def bar(self, x: float, y: float, width: float, height: float, series: int, tip: str) -> None:
        self.parts.append(
            f'<rect class="bar {_colour(series)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}"><title>{escape(tip)}</title></rect>'
        )

    def row_name(self, name: str, y: float) -> None:
        self.text(_NAMES - 8, y + 4, _shortened(name, _MAX_NAME), "end", "name")

    def bottom_axis(self, x: AxisScale, y: float, label: str, ticks: Sequence[float] = ()) -> None:
        for tick in ticks or x.ticks(5):
            self.line(x(tick), _TOP, x(tick), y, "grid")
            self.text(x(tick), y + 16, short(tick))
        self.line(x.start, y, x.end, y, "axis")
        self.text((x.start + x.end) / 2, y + 32, label, kind="label")

    def left_axis(self, y: AxisScale, label: str) -> None:
        for tick in y.ticks(4):
            self.line(_LEFT, y(tick), WIDTH - _RIGHT, y(tick), "grid")
            self.text(_LEFT - 6, y(tick) + 4, short(tick), "end")
        self.text(_LEFT, _TOP - 2, label, "start", "label")

    def legend(self, names: Sequence[tuple[str, int]]) -> None:
        """Draw the names in two columns at the bottom."""
        top = self.height - _legend_height(len(names)) + 4
        for i, (name, series) in enumerate(names if len(names) > 1 else ()):
            left, y = 8 + (WIDTH / 2 - 4) * (i % 2), top + 18 * (i // 2) + 8
            self.bar(left, y - 9, 10, 10, series, name)
            self.text(left + 15, y, _shortened(name, _MAX_LEGEND), "start")

    def svg(self) -> str:
        return (
            f'<svg role="img" aria-label="{escape(self.title)}" '
            f'viewBox="0 0 {WIDTH} {self.height:.0f}">{"".join(self.parts)}</svg>'
        )


def interval_chart(
    title: str, rows: Sequence[ChartRow], axis: str, *, at: float | None = None
) -> str:
    """A row with a mark each. `at`: where the line for comparison stands; none without it."""
    bottom = _TOP + _ROW * len(rows)
    drawing = SvgDrawing(title, bottom + _BOTTOM)
    values = [v for row in rows for v in (row.low, row.value, row.high)]
    if at is not None:
        values = seen(values, [row.value for row in rows] + [at])
    x = scale_for(values, _NAMES, _ROW_END, also=at or 0.0)
    drawing.bottom_axis(x, bottom, axis)
    if at is not None:
        drawing.line(x(at), _TOP - 4, x(at), bottom, "ref")
    for i, row in enumerate(rows):
        y = _TOP + _ROW * (i + 0.5)
        tip = f"{row.name}: {short(row.value)} ({short(row.low)} to {short(row.high)})"
        drawing.row_name(row.name, y)
        drawing.line(x(row.low), y, x(row.high), y, f"span {_colour(row.series)}")
        drawing.dot(x(row.value), y, row.series, tip)
        drawing.text(WIDTH - 4, y + 4, row.note, "end")
    return drawing.svg()


def line_chart(
    title: str,
    series: Sequence[ChartSeries],
    axes: tuple[str, str],
    *,
    at: float | None = None,
    ticks: Sequence[float] = (),
) -> str:
    """`axes`: the labels across and up; up begins at zero. `at`: a level for comparison. `ticks`:
    the only values that there are across."""
    legend = _legend_height(len(series))
    drawing = SvgDrawing(title, 230 + legend)
    bottom = 230 - _BOTTOM
    levels = [] if at is None else [at]
    x = scale_for([x for each in series for x, _ in each.points], _LEFT, WIDTH - _RIGHT)
    y = scale_for(levels + [y for each in series for _, y in each.points], bottom, _TOP, also=0.0)
    drawing.left_axis(y, axes[1])
    drawing.bottom_axis(x, bottom, axes[0], ticks)
    for level in levels:
        drawing.line(_LEFT, y(level), WIDTH - _RIGHT, y(level), "ref")
    for each in series:
        if each.has_line and len(each.points) > 1:
            path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in each.points)
            kind = f"path {_colour(each.series)}"
            drawing.parts.append(f'<polyline class="{kind}" points="{path}"/>')
        for px, py in each.points:
            tip = f"{each.name}: {axes[0]} {short(px)}, {axes[1]} {short(py)}"
            drawing.dot(x(px), y(py), each.series, tip, 3 if each.has_line else 2.5)
    drawing.legend([(each.name, each.series) for each in series])
    return drawing.svg()


def stack_chart(
    title: str, rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str], axis: str
) -> str:
    """A row each, of parts one after the other."""
    bottom = _TOP + _ROW * len(rows)
    drawing = SvgDrawing(title, bottom + _BOTTOM + _legend_height(len(parts)))
    x = scale_for([sum(values) for _, values in rows], _NAMES, _ROW_END, also=0.0)
    drawing.bottom_axis(x, bottom, axis)
    for i, (name, values) in enumerate(rows):
        y, done = _TOP + _ROW * i, 0.0
        drawing.row_name(name, y + _ROW / 2)
        for k, value in enumerate(values):
            tip = f"{name}, {parts[k]}: {short(value)}"
            drawing.bar(x(done), y + 5, x(done + value) - x(done), _ROW - 10, k, tip)
            done += value
        drawing.text(WIDTH - 4, y + _ROW / 2 + 4, short(done), "end")
    drawing.legend([(part, k) for k, part in enumerate(parts)])
    return drawing.svg()


def _colour(series: int) -> str:
    return f"s{series % N_COLOURS}"


def _legend_height(n: int) -> int:
    """The title names a single series."""
    return 18 * ((n + 1) // 2) if n > 1 else 0


def _shortened(name: str, n: int) -> str:
    """The name cut in the middle: names of configurations begin alike."""
    if len(name) <= n:
        return name
    behind = n // 2
    return f"{name[: n - 1 - behind]}…{name[-behind:]}"
