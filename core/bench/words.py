"""Figures as people read them; unknown is a dash."""

from __future__ import annotations

from .record import BenchReport, Interval, Summary, TimeSpread
from .scale import short

NOTHING = "\N{EN DASH}"


def number(value: float | None, unit: str = "") -> str:
    return NOTHING if value is None else f"{short(value)}{unit}"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}%"


def interval(value: Interval | None) -> str:
    if value is None:
        return NOTHING
    return f"{value.value:.3f}x [{value.low:.3f}, {value.high:.3f}]"


def spread(value: TimeSpread | None) -> str:
    """Median and 95th percentile."""
    return NOTHING if value is None else f"{short(value.p50)} / {short(value.p95)}"


def identical(summary: Summary) -> str:
    known = {None: NOTHING, True: "yes", False: "no"}
    return known[summary.counts.identical]


def size(n_bytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(n_bytes) < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes = n_bytes / 1024  # type: ignore[assignment]
    return f"{n_bytes:.2f} GiB"


def overall(report: BenchReport) -> list[Summary]:
    """Of all categories together, a line for each configuration and concurrency."""
    return [each for each in report.summaries if not each.category]


def alone(report: BenchReport, category: str = "") -> list[Summary]:
    """With the fewest users that were measured, which is one as a rule."""
    found = [each for each in report.summaries if each.category == category]
    least = min((each.concurrency for each in found), default=1)
    return [each for each in found if each.concurrency == least]


def categories(report: BenchReport) -> list[str]:
    return list(dict.fromkeys(each.category for each in report.summaries if each.category))
