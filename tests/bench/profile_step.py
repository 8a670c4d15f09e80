"""Time of every kernel within a step: where to look before making one faster.

    make bench-profile FILE=model.gguf ROWS=1,4

The recorded program is run with a time stamp after each kernel and after each meeting, taken by
the leading thread. `work` is its own share of a kernel; `wait` is for the other threads, and for
what they do meanwhile. GB/s are the matrix's bytes over both.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.core.backend.cpu.emit import I64, Emitter
from nextn.core.backend.cpu.kernels.moe_kernel import ExpertWords
from nextn.core.backend.cpu.kernels.product import ProductWords
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.team import Program, Team

from .setup import Stepper

ROUNDS, PAST = 15, 512


def write_stamp(e: Emitter) -> None:
    """The cycle counter into the word that the leading thread is given; others do nothing."""
    word, part, _ = e.parameters
    with e.when(part < 1):
        e.store(e.call("llvm.readcyclecounter", I64), word, 8)
    e.finish()


class StampedTeam(Team):
    """Runs every program with stamps in it, and keeps them: (entry, after kernel | meeting)."""

    def __init__(self, kernels: Kernels, n_threads: int) -> None:
        super().__init__(kernels, n_threads)
        self._stamp = kernels.get({"bench_stamp": write_stamp})["bench_stamp"]
        self.program: Program | None = None
        self._stamped: Program | None = None
        self.stamps: NDArray[np.int64] = np.zeros((1, 2), np.int64)

    def run(self, program: Program, size: int | None = None) -> None:
        if self.program is not program:
            self.program, self._stamped = program, self._with_stamps(program)
        assert self._stamped is not None
        super().run(self._stamped, size)

    def _with_stamps(self, program: Program) -> Program:
        """First a stamp, then of each entry the kernel, a stamp and the meeting, a stamp."""
        self.stamps = np.zeros((program.n_entries + 1, 2), np.int64)
        entries = [(self._stamp, self._address(0, 1), False)]
        for i, (kernel, arguments, meet) in enumerate(program.entries.tolist(), 1):
            entries.append((kernel, arguments, False))
            entries.append((self._stamp, self._address(i, 0), bool(meet)))
            entries.append((self._stamp, self._address(i, 1), False))
        return Program([*entries, (self._stamp, self._address(0, 0), True)])

    def _address(self, row: int, column: int) -> int:
        return int(self.stamps.ctypes.data) + 8 * (2 * row + column)

    def cycles(self) -> NDArray[np.int64]:
        """Of each entry of the last run: (work, wait)."""
        work = self.stamps[1:, 0] - self.stamps[:-1, 1]
        wait = self.stamps[1:, 1] - self.stamps[1:, 0]
        return np.stack([work, wait], axis=1)


@dataclass
class Line:
    """All entries of a step that run the same kernel on the same type and shape."""

    n: int = 0
    work: float = 0.0  # milliseconds
    wait: float = 0.0
    n_bytes: int = 0  # of matrices; what an expert product reads depends on the routing


def describe(kernels: Kernels, program: Program) -> list[tuple[str, int]]:
    """A name for each entry, and the bytes of its matrix."""
    names = {address: name for name, address in kernels.addresses.items()}
    found = []
    for kernel, arguments, _ in program.entries.tolist():
        name, n_bytes = names[kernel], 0
        if name == "product":
            p = ProductWords
            words = _words(arguments, p.COUNT)
            n_bytes = words[p.N_TILES] * (words[p.TILE_BYTES] + words[p.TILE_SCALE_BYTES])
            form = names[words[p.FUNCTIONS]].rpartition("_")[0].removeprefix("tile_")
            name = f"product {form} {words[p.N_OUT]} wide, {words[p.N_SPANS]} spans"
        elif name == "expert_product":
            form = names[_words(arguments, ExpertWords.COUNT)[ExpertWords.FUNCTIONS]]
            name = f"expert product {form.rpartition('_')[0].removeprefix('tile_')}"
        found.append((name, n_bytes))
    return found


def _words(address: int, n: int) -> list[int]:
    return list((ctypes.c_int64 * n).from_address(address))


def profile(stepper: Stepper, team: StampedTeam, n_rows: int) -> tuple[dict[str, Line], float]:
    """Lines by name, medians over rounds; and the milliseconds of the step, stamps included."""
    step, cycles, times = stepper.step(n_rows, PAST), [], []
    start, first = time.perf_counter(), None
    for _ in range(ROUNDS):
        times.append(stepper.ms(step))
        cycles.append(team.cycles())
        first = team.stamps[0, 1] if first is None else first
    seconds = time.perf_counter() - start - times[0] / 1000
    per_ms = (team.stamps[-1, 1] - first) / seconds / 1000
    ms = np.median(np.array(cycles), axis=0) / per_ms
    assert team.program is not None
    lines: dict[str, Line] = defaultdict(Line)
    described = describe(stepper.backend.kernels, team.program)
    for (name, n_bytes), (work, wait) in zip(described, ms.tolist(), strict=True):
        line = lines[name]
        line.n, line.n_bytes = line.n + 1, line.n_bytes + n_bytes
        line.work, line.wait = line.work + work, line.wait + wait
    return lines, statistics.median(times)


def table(lines: Iterable[tuple[str, Line]]) -> str:
    out = [f"{'kernel':60} {'n':>4} {'work ms':>9} {'wait ms':>9} {'MB':>8} {'GB/s':>7}"]
    for name, line in sorted(lines, key=lambda item: -item[1].work - item[1].wait):
        text = f"{name[:60]:60} {line.n:4} {line.work:9.3f} {line.wait:9.3f}"
        if line.n_bytes:
            rate = line.n_bytes / (line.work + line.wait) / 1e6
            text += f" {line.n_bytes / 1e6:8.1f} {rate:7.1f}"
        out.append(text)
    return "\n".join(out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make bench-profile", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=_rows, default=[1])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    stepper = Stepper(options.file, options.threads, make_team=StampedTeam)
    team: Any = stepper.backend.team
    stepper.ms(stepper.prompt(PAST))
    for n_rows in options.rows:
        stepper.ms(stepper.step(n_rows, PAST))
        lines, ms = profile(stepper, team, n_rows)
        work, wait = (sum(getattr(x, name) for x in lines.values()) for name in ("work", "wait"))
        sys.stdout.write(f"\n{n_rows} rows: {ms:.2f} ms, work {work:.2f}, wait {wait:.2f}\n")
        sys.stdout.write(table(lines.items()) + "\n")


def _rows(text: str) -> list[int]:
    rows = [int(n) for n in text.split(",")]
    if not all(1 <= n <= PAST for n in rows):
        raise argparse.ArgumentTypeError(f"rows must be 1 to {PAST}, got {text}")
    return rows


if __name__ == "__main__":
    main()
