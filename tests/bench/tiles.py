"""The tile kernels by themselves: every format by rows, and the generic set beside AVX2."""

from __future__ import annotations

from dataclasses import asdict

from . import tile_figures
from .figures import Figure
from .setup import Setup

ROWS = (1, 4, 8, 16)
COMPARED = ("Q4_0", "Q8_0", "Q4_K", "Q6_K")


def every_format(_: Setup) -> list[Figure]:
    """One core, weights in the cache: gigabytes of weights and billions of 64-byte products."""
    best = tile_figures.best_set()
    found = tile_figures.figures([best], rows=ROWS)
    return [
        Figure(f"{x.format} in {best}, {x.rows} rows", x.gb_per_s, "GB/s", detail=asdict(x))
        for x in found
    ]


def generic(_: Setup) -> list[Figure]:
    """How much of AVX2 the set reaches that runs anywhere."""
    found = tile_figures.figures(["generic", "avx2"], COMPARED, (1, 4, 8))
    speed = {(x.set, x.format, x.rows): x.gb_per_s for x in found}
    return [
        Figure(
            f"{name}, {rows} rows: generic / AVX2",
            speed["generic", name, rows] / speed["avx2", name, rows],
            "x",
            at_least=0.5,
        )
        for name in COMPARED
        for rows in (1, 4, 8)
    ]
