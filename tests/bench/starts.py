"""Starting, memory, and what an empty kernel costs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from nextn.core.backend.cpu.emit import Emitter
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.cpu.team import Program, Team

from .figures import Figure
from .setup import Setup

RUNS, ENTRIES = 300, 200


def dispatch(setup: Setup) -> list[Figure]:
    """A kernel that does nothing, barrier included."""
    kernels = Kernels(next(made for made in SETS.values() if made.is_available())())

    def nothing(e: Emitter) -> None:
        e.finish()

    address = kernels.get({"bench_nothing": nothing})["bench_nothing"]
    words = np.zeros(1, np.int64)
    program = Program([(address, words.ctypes.data, True)] * ENTRIES)
    team = Team(kernels, setup.threads)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        team.run(program)
        times.append(1e6 * (time.perf_counter() - start) / ENTRIES)
    team.close()
    return [Figure("an empty kernel with its meeting", statistics.median(times), "us")]


START = """
import sys, time
start = time.perf_counter()
import nextn.core, nextn.core.runtime
def memory(name):  # of this process alone: getrusage would count what started it
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
before = memory("VmRSS")
runtime = nextn.core.load(sys.argv[1], "cpu", n_ctx=4096)
events = runtime.generate("Hello world, this is")
next(events)
ready = time.perf_counter() - start
peak = memory("VmHWM") - before
b = runtime.budget
planned = b.weights + b.kv + b.recurrent
print(ready, peak, planned)
"""


def starts(setup: Setup) -> list[Figure]:
    """From nothing to a first token, in new processes, without and with cached kernels."""
    path = setup.file("wide")
    figures = []
    peak = planned = 0.0
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "SPEC_CACHE_DIR": cache}
        for name in ("first start, kernels compiled", "start", "start again"):
            done = subprocess.run(
                [sys.executable, "-c", START, str(path)],
                env=environment, capture_output=True, text=True, check=True,
            )  # fmt: skip
            ready, peak, planned = map(float, done.stdout.split())
            figures.append(Figure(f"wide Q4_K_M: {name}", ready, "s"))
    detail = {"peak_bytes": peak, "planned_bytes": planned}
    name = "wide Q4_K_M: peak / planned memory"
    return [*figures, Figure(name, peak / planned, "x", detail=detail)]
