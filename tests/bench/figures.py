"""A figure: what was asked, what was measured; and the table and the record made of many."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """`detail` goes into the record only: what the figure was computed from."""

    name: str
    measured: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        if self.at_least is not None:
            return f">= {_short(self.at_least)}"
        return "" if self.at_most is None else f"<= {_short(self.at_most)}"

    @property
    def verdict(self) -> str:
        """Nothing where nothing was asked; NaN meets nothing."""
        if self.at_least is not None:
            return "met" if self.measured >= self.at_least else "missed"
        if self.at_most is not None:
            return "met" if self.measured <= self.at_most else "missed"
        return ""

    def as_json(self) -> dict[str, Any]:
        parts = {"figure": self.name, "measured": self.measured, "unit": self.unit}
        asked = {"asked": self.asked, "verdict": self.verdict} if self.asked else {}
        return parts | asked | dict(self.detail)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Of repeated measurements: what a reader needs to judge their median."""
    return {
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "n": len(values),
    }


def table(sections: Mapping[str, Iterable[Figure]]) -> str:
    rows = [("section", "figure", "asked", "measured", "")]
    for section, figures in sections.items():
        for figure in figures:
            measured = f"{_short(figure.measured)} {figure.unit}".strip()
            rows.append((section, figure.name, figure.asked, measured, figure.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * n for n in widths))
    return "\n".join(line.rstrip() for line in lines)


def summary(sections: Mapping[str, Iterable[Figure]]) -> str:
    verdicts = [figure.verdict for figures in sections.values() for figure in figures]
    return f"{verdicts.count('met')} met, {verdicts.count('missed')} missed"


def _short(value: float) -> str:
    """Three significant digits, more where the number has them before the point."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"
