"""Plots as inline SVG. Colours and fonts are those of the page: classes `s0`, `s1`, … for series.

420 units wide, which is about a phone: there a unit is a pixel, and larger screens show several
plots beside each other instead of larger letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from .scale import AxisScale, scale_for, seen, short

WIDTH: Final = 420
N_COLOURS: Final = 8
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 40
_ROW: Final = 26
_NAMES: Final = 138  # of the rows of a plot
_SHOWN: Final = 16  # characters of these
_LEGEND: Final = 24  # characters of a name in half the width


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a plot of intervals: a mark, and how far it may be off."""

    name: str
    low: float
    value: float
    high: float
    series: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    series: int = 0
    is_dashed: bool = False
    has_line: bool = True
    has_dots: bool = True


@dataclass(slots=True)
class Drawing:
    title: str
    height: float
    parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def text(self, x: float, y: float, said: str, anchor: str = "middle", kind: str = "") -> None:
        css = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{escape(said)}</text>'
        )

    def dot(self, x: float, y: float, series: int, tip: str, size: float = 4) -> None:
        self.parts.append(
            f'<circle class="dot {colour(series)}" cx="{x:.1f}" cy="{y:.1f}" r="{size:g}">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def bar(self, box: tuple[float, float, float, float], series: int, tip: str) -> None:
        x, y, width, height = box
        self.parts.append(
            f'<rect class="bar {colour(series)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{max(0.0, height):.1f}"><title>{escape(tip)}</title></rect>'
        )

    def svg(self) -> str:
        return (
            f'<svg role="img" aria-label="{escape(self.title)}" '
            f'viewBox="0 0 {WIDTH} {self.height:.0f}">{"".join(self.parts)}</svg>'
        )


def colour(series: int) -> str:
    return f"s{series % N_COLOURS}"


def intervals(title: str, rows: Sequence[Row], axis: str, unit: str = "", *,
              at: float | None = None) -> str:  # fmt: skip
    """A row each. `at`: where the line stands that a reader compares with, 0 unless said."""
    height = _TOP + _ROW * len(rows) + _BOTTOM
    drawing = Drawing(title, height)
    values = [v for row in rows for v in (row.low, row.value, row.high)]
    if at is not None:
        values = seen(values, [row.value for row in rows] + [at])
    x = scale_for(values, _NAMES, WIDTH - _RIGHT - 46, also=at or 0.0)
    _bottom_axis(drawing, x, height - _BOTTOM, axis, unit)
    if at is not None:
        drawing.line(x(at), _TOP - 4, x(at), height - _BOTTOM, "ref")
    for i, row in enumerate(rows):
        y = _TOP + _ROW * (i + 0.5)
        drawing.text(_NAMES - 8, y + 4, cut(row.name, _SHOWN), "end", "name")
        tip = f"{row.name}: {short(row.value)}{unit} ({short(row.low)} to {short(row.high)}{unit})"
        drawing.line(x(row.low), y, x(row.high), y, f"span {colour(row.series)}")
        drawing.dot(x(row.value), y, row.series, tip)
        drawing.text(WIDTH - 4, y + 4, row.note or f"{short(row.value)}{unit}", "end")
    return drawing.svg()


def lines(title: str, series: Sequence[Line], axes: tuple[str, str], *,
          at: float | None = None, ticks: Sequence[float] = ()) -> str:  # fmt: skip
    """`axes`: what is across and what is up, from zero. `at`: a level to compare with. `ticks`:
    the only values there are across."""
    height = 230 + _legend_height(series)
    drawing = Drawing(title, height)
    bottom = height - _BOTTOM - _legend_height(series)
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points] + ([] if at is None else [at])
    x = scale_for(xs, _LEFT, WIDTH - _RIGHT)
    y = scale_for(ys, bottom, _TOP, also=0.0)
    _left_axis(drawing, y, axes[1])
    _bottom_axis(drawing, x, bottom, axes[0], ticks=ticks)
    if at is not None:
        drawing.line(_LEFT, y(at), WIDTH - _RIGHT, y(at), "ref")
    for line in series:
        _line(drawing, line, x, y, axes)
    _legend(drawing, [(each.name, each.series) for each in series], bottom + _BOTTOM + 4)
    return drawing.svg()


def bars(title: str, names: Sequence[str], series: Sequence[tuple[str, int, Sequence[float]]],
         axes: tuple[str, str], unit: str = "") -> str:  # fmt: skip
    """Groups of bars beside each other, a group for each of `names`; (name, colour, values)."""
    legend = _legend_rows([name for name, _, _ in series])
    height = 210 + legend
    drawing = Drawing(title, height)
    bottom = height - _BOTTOM - legend
    y = scale_for([v for _, _, values in series for v in values], bottom, _TOP, also=0.0)
    _left_axis(drawing, y, axes[1])
    group = (WIDTH - _LEFT - _RIGHT) / max(1, len(names))
    width = 0.8 * group / max(1, len(series))
    every = max(1, -(-len(names) * 24 // (WIDTH - _LEFT - _RIGHT)))  # as many labels as fit
    for i, name in enumerate(names):
        left = _LEFT + group * (i + 0.1)
        if i % every == 0:
            drawing.text(left + 0.4 * group, bottom + 16, name)
        for k, (of, tint, values) in enumerate(series):
            value = values[i] if i < len(values) else 0.0
            tip = f"{of}, {name}: {short(value)}{unit}"
            box = (left + k * width, y(value), max(1.0, width - 1), bottom - y(value))
            drawing.bar(box, tint, tip)
    drawing.line(_LEFT, bottom, WIDTH - _RIGHT, bottom, "axis")
    drawing.text((_LEFT + WIDTH - _RIGHT) / 2, bottom + 32, axes[0], kind="label")
    _legend(drawing, [(name, tint) for name, tint, _ in series], bottom + _BOTTOM + 4)
    return drawing.svg()


def stacks(title: str, rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str],
           axis: str) -> str:  # fmt: skip
    """A row each, of parts one after the other."""
    legend = _legend_rows(parts)
    height = _TOP + _ROW * len(rows) + _BOTTOM + legend
    drawing = Drawing(title, height)
    x = scale_for([sum(values) for _, values in rows], _NAMES, WIDTH - _RIGHT - 46, also=0.0)
    _bottom_axis(drawing, x, height - _BOTTOM - legend, axis)
    for i, (name, values) in enumerate(rows):
        y = _TOP + _ROW * i
        drawing.text(_NAMES - 8, y + _ROW / 2 + 4, cut(name, _SHOWN), "end", "name")
        done = 0.0
        for k, value in enumerate(values):
            tip = f"{name}, {parts[k]}: {short(value)}"
            box = (x(done), y + 5, x(done + value) - x(done), _ROW - 10)
            drawing.bar(box, k, tip)
            done += value
        drawing.text(WIDTH - 4, y + _ROW / 2 + 4, short(done), "end")
    _legend(drawing, list(zip(parts, range(len(parts)), strict=True)), height - legend + 4)
    return drawing.svg()


def cut(name: str, n: int) -> str:
    """From the middle: names of configurations begin alike."""
    if len(name) <= n:
        return name
    behind = n // 2
    return f"{name[: n - 1 - behind]}…{name[-behind:]}"


def _line(drawing: Drawing, line: Line, x: AxisScale, y: AxisScale, axes: tuple[str, str]) -> None:
    if line.has_line and len(line.points) > 1:
        path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in line.points)
        dashes = " dashed" if line.is_dashed else ""
        drawing.parts.append(
            f'<polyline class="path {colour(line.series)}{dashes}" points="{path}"/>'
        )
    if not line.has_dots:
        return
    for px, py in line.points:
        tip = f"{line.name}: {axes[0]} {short(px)}, {axes[1]} {short(py)}"
        drawing.dot(x(px), y(py), line.series, tip, 3 if line.has_line else 2.5)


def _bottom_axis(
    drawing: Drawing,
    x: AxisScale,
    y: float,
    label: str,
    unit: str = "",
    ticks: Sequence[float] = (),
) -> None:
    for tick in ticks or x.ticks(5):
        drawing.line(x(tick), _TOP, x(tick), y, "grid")
        drawing.text(x(tick), y + 16, f"{short(tick)}{unit}")
    drawing.line(x.start, y, x.end, y, "axis")
    drawing.text((x.start + x.end) / 2, y + 32, label, kind="label")


def _left_axis(drawing: Drawing, y: AxisScale, label: str) -> None:
    for tick in y.ticks(4):
        drawing.line(_LEFT, y(tick), WIDTH - _RIGHT, y(tick), "grid")
        drawing.text(_LEFT - 6, y(tick) + 4, short(tick), "end")
    drawing.text(_LEFT, _TOP - 2, label, "start", "label")


def _legend_height(series: Sequence[Line]) -> int:
    return _legend_rows([line.name for line in series])


def _legend_rows(names: Sequence[str]) -> int:
    return 18 * ((len(names) + 1) // 2) if len(names) > 1 else 0


def _legend(drawing: Drawing, names: Sequence[tuple[str, int]], top: float) -> None:
    """Two columns; none for a single series, which the title names."""
    if len(names) < 2:
        return
    for i, (name, series) in enumerate(names):
        left, y = 8 + (WIDTH / 2 - 4) * (i % 2), top + 18 * (i // 2) + 8
        drawing.bar((left, y - 9, 10, 10), series, name)
        drawing.text(left + 15, y, cut(name, _LEGEND), "start")
