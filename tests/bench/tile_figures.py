"""How fast the tile kernels are by themselves: one thread, weights in the second-level cache.

`python -m bench.tile_figures [--sets a,b] [--formats x,y] [--rows 1,4]` prints a table. GB/s
are of repacked weights; Gdot/s are 64 products of bytes each, so that formats can be compared.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nextn.core.backend.cpu.emit import Emitter
from nextn.core.backend.cpu.formats import EXPANDED, FORMATS, find_tile_format
from nextn.core.backend.cpu.formats.floats import _Floats
from nextn.core.backend.cpu.formats.tile_format import ROWS, CpuTileFormat, Record
from nextn.core.backend.cpu.kernels.tile import TILE, WIDTHS, write_float_tile, write_tile
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.memory import aligned
from nextn.core.backend.cpu.simd import SETS

N_IN = 1024  # elements of a row: as wide as a small model
WEIGHT_BYTES = 256 << 10  # a quarter of the second-level cache of most CPUs
SECONDS, ROUNDS = 0.002, 15  # of one measurement, and how many there are of each kernel
ALL_FORMATS: dict[str, CpuTileFormat] = {**FORMATS, EXPANDED.name: EXPANDED}


@dataclass(frozen=True, slots=True)
class Figure:
    set: str
    format: str
    rows: int
    gb_per_s: float
    gdot_per_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel with what it works on; `work(n)` goes n times through all tiles."""

    form: CpuTileFormat
    set_name: str
    rows: int
    n_tiles: int
    words: Any
    function: Any
    held: tuple[Any, ...]

    def work(self, n: int) -> float:
        self.words[0] = n
        start = time.perf_counter()
        self.function(self.words.ctypes.data, 0, 1)
        return time.perf_counter() - start


def write_loop(e: Emitter) -> None:
    """Arguments: rounds, tiles, tile function, bytes of a tile and its scales, 10 tile words."""
    rounds, n_tiles, function, tile_bytes, scale_bytes, *w = e.words(e.parameters[0], 15)
    with e.range(0, rounds), e.range(0, n_tiles) as tile:
        at = [w[0] + tile * tile_bytes, w[1] + tile * scale_bytes]
        e.call_address(TILE, function, *at, *w[2:])
    e.finish()


def build(kernels: Kernels, form: CpuTileFormat, rows: int) -> Case:
    name = f"tile_{form.name}_{rows}"
    write: Any = (
        partial(write_float_tile, form=form, m=rows)
        if isinstance(form, _Floats)
        else partial(write_tile, form=form, m=rows)
    )
    found = kernels.get({name: write, "bench_loop": write_loop}, kinds={name: TILE})
    n_spans = N_IN // form.span
    tile_bytes, scale_bytes = n_spans * form.quant_bytes, n_spans * form.scale_bytes
    n_tiles = max(1, WEIGHT_BYTES // (tile_bytes + scale_bytes))
    # Zeros as scales: no half float of random bits may slow anything down by being subnormal.
    quants, scales = aligned(n_tiles * tile_bytes), aligned(n_tiles * scale_bytes + 64)
    if not form.is_float:
        quants[:] = np.random.default_rng(0).integers(0, 256, len(quants), dtype=np.uint8)
    x = aligned(rows * (4 * N_IN if form.is_float else N_IN // Record.BLOCK * Record.SIZE))
    y = aligned(rows * 4 * ROWS)
    words = np.array(
        [
            1, n_tiles, found[name], tile_bytes, scale_bytes,
            quants.ctypes.data, scales.ctypes.data, n_spans, x.ctypes.data, 4 * N_IN,
            y.ctypes.data, 4 * ROWS, ROWS, 0, 0,
        ],
        np.int64,
    )  # fmt: skip
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(found["bench_loop"])
    return Case(
        form, kernels.simd.name, rows, n_tiles, words, function, (quants, scales, x, y, kernels)
    )


def measure(cases: list[Case]) -> Iterator[Figure]:
    """The best of rounds in which each case gets its turn, so that all see the same machine."""
    repeats = [max(1, int(SECONDS / min(case.work(1) for _ in range(3)))) for case in cases]
    best = [float("inf")] * len(cases)
    for _ in range(ROUNDS):
        for i, (case, n) in enumerate(zip(cases, repeats, strict=True)):
            best[i] = min(best[i], case.work(n) / n)
    for case, seconds in zip(cases, best, strict=True):
        form = case.form
        n_bytes = case.n_tiles * N_IN // form.span * (form.quant_bytes + form.scale_bytes)
        n_dots = case.n_tiles * N_IN * ROWS * case.rows / 64
        yield Figure(
            case.set_name, form.name, case.rows, n_bytes / seconds / 1e9, n_dots / seconds / 1e9
        )


def figures(
    sets: Iterable[str] | None = None,
    formats: Iterable[str] = tuple(ALL_FORMATS),
    rows: Iterable[int] = WIDTHS,
) -> list[Figure]:
    """Of the instruction sets that this CPU has."""
    chosen = [s for s in SETS if SETS[s].is_available()] if sets is None else list(sets)
    made = {name: Kernels(SETS[name]()) for name in chosen}
    keys = [(f, m, s) for f in formats for m in rows for s in chosen]
    # As the loader would: a set may have its own form of a format.
    cases = [build(made[s], find_tile_format(f, made[s].simd), m) for f, m, s in keys]
    return [replace(x, format=f) for x, (f, _, _) in zip(measure(cases), keys, strict=True)]


def best_set() -> str:
    return next(name for name, made in SETS.items() if made.is_available())


def table(found: list[Figure]) -> str:
    """A line for each format and number of rows, two columns for each set."""
    sets = list(dict.fromkeys(f.set for f in found))
    by_key = {(f.format, f.rows, f.set): f for f in found}
    lines = ["format  rows" + "".join(f"{s + ': GB/s, Gdot/s':>28}" for s in sets)]
    for name, m in dict.fromkeys((f.format, f.rows) for f in found):
        row = [by_key[name, m, s] for s in sets]
        cells = "".join(f"{f.gb_per_s:20.1f}{f.gdot_per_s:8.3f}" for f in row)
        lines.append(f"{name:8}{m:4}{cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=lambda s: s.split(","))
    parser.add_argument("--formats", type=lambda s: s.split(","), default=list(ALL_FORMATS))
    parser.add_argument("--rows", type=lambda s: [int(m) for m in s.split(",")], default=WIDTHS)
    options = parser.parse_args()
    found = figures(options.sets, options.formats, options.rows)
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
