"""Steps beside one busy process, which the system puts wherever it likes."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .figures import Figure, spread
from .setup import Setup, Stepper

ROUNDS, STEPS = 4, 15  # 60 steps alone, 60 beside the neighbour
SETTLE = 10  # steps that are not counted, after the neighbour came or went
PAST = 512
ASKED = 2.2
SPIN = "print(flush=True)\nwhile True: pass"


def beside_a_neighbour(setup: Setup) -> list[Figure]:
    stepper = Stepper(setup.file("Q4_K_M"), setup.threads, max_rows=16)
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(ROUNDS):
        alone += steps(stepper)
        with spinning():
            beside += steps(stepper)
    undisturbed = statistics.median(alone)
    detail = {"alone_ms": spread(alone), "beside_ms": spread(beside)}
    late = float(np.quantile(beside, 0.95)) / undisturbed
    return [
        Figure(
            "Q4_K_M: step beside a busy process, median",
            statistics.median(beside) / undisturbed, "x", at_most=ASKED, detail=detail,
        ),
        Figure("Q4_K_M: the same, 95th percentile", late, "x"),
    ]  # fmt: skip


def steps(stepper: Stepper) -> list[float]:
    step = stepper.step(1, PAST)
    return [stepper.ms(step) for _ in range(SETTLE + STEPS)][SETTLE:]


@contextmanager
def spinning() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it spins from here on
        try:
            yield
        finally:
            process.kill()
