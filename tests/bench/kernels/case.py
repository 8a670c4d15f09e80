"""A case: a kernel in a shape, with the bytes it must move and what its result has to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..figures import Figure
from .place import Place

PACKING = 2e-4  # what packed rows lose, at most, of all together


@dataclass(frozen=True)
class Work:
    """One launch over arrays of its own."""

    launch: Callable[[], None]
    moved: int  # bytes, read and written, that no better kernel could spare
    flops: int = 0
    error: Callable[[], float] | None = None  # after one launch, of a part of the result


@dataclass(frozen=True)
class Asked:
    """What is asked of a case on an H200."""

    share: float | None = None  # of the bandwidth that a copy has, at least
    us: float | None = None  # at most


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Place], Work]
    tolerance: float = PACKING  # of `Work.error`
    asked: Asked = field(default_factory=Asked)


@dataclass(frozen=True)
class RoundOutcome:
    case: Case
    error: float  # NaN: not checked
    seconds: float  # NaN: not measured
    seconds_early: float
    moved: int
    flops: int

    @property
    def is_right(self) -> bool:
        return math.isnan(self.error) or self.error <= self.case.tolerance

    @property
    def bytes_per_s(self) -> float:
        return self.moved / self.seconds

    def figures(self, copied: float) -> list[Figure]:
        """`copied`: bytes per second of a copy, read and written."""
        name = self.case.name
        detail: dict[str, Any] = {
            "bytes": self.moved,
            "gb_per_s": self.bytes_per_s / 1e9,
            "us_early": self.seconds_early * 1e6,
        }
        if self.flops:
            detail["tflop_per_s"] = self.flops / self.seconds / 1e12
        asked = self.case.asked
        found = [Figure(name, self.seconds * 1e6, "us", at_most=asked.us, detail=detail)]
        share = self.bytes_per_s / copied
        found.append(Figure(f"{name}: of a copy", share, at_least=asked.share))
        if not math.isnan(self.error):
            found.append(Figure(f"{name}: error", self.error, at_most=self.case.tolerance))
        return found


def run(case: Case, place: Place) -> RoundOutcome:
    """Check one launch, then measure many, with arrays that no cache holds between them."""
    first = case.make(place)
    first.launch()
    error = math.nan if first.error is None else first.error()
    works = [first, *(case.make(place) for _ in range(place.copies(first.moved) - 1))]
    launches = [work.launch for work in works]
    plain, early = (place.measure(launches, early=early) for early in (False, True))
    return RoundOutcome(case, error, plain, early, first.moved, first.flops)


def wrong(outcomes: Sequence[RoundOutcome]) -> list[str]:
    return [
        f"{one.case.name}: error {one.error:.3g}, at most {one.case.tolerance:.3g}"
        for one in outcomes
        if not one.is_right
    ]
