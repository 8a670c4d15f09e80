"""Axes: round numbers between the ends, and where a value lies between them."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


class AxisScale(Struct, frozen=True):
    low: float
    high: float
    start: float  # where `low` is drawn
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, n: int = 5) -> list[float]:
        step = _round_step((self.high - self.low) / max(1, n))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def scale_for(
    values: list[float], start: float, end: float, *, also: float | None = None
) -> AxisScale:
    """A scale from a little below the least to a little above the greatest value and `also`."""
    known = [value for value in values if math.isfinite(value)]
    if also is not None:
        known.append(also)
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low = 0.0 if also == 0.0 and low >= 0 else low - room
    return AxisScale(low, high + room, start, end)


def seen(values: list[float], marks: list[float]) -> list[float]:
    """Ends of intervals, but none so far from all marks that these would fall together."""
    low, high = min(marks), max(marks)
    room = max(high - low, 0.5 * abs(high))
    return [min(max(value, low - room), high + room) for value in values]


def _round_step(raw: float) -> float:
    size = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    return size * next(step for step in _STEPS if step * size >= raw * (1 - 1e-9))


def short(value: float) -> str:
    """A number with three digits or so."""
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:,.0f}k" if size < 1e6 else f"{value:.3g}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"
