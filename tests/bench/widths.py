"""Milliseconds of steps of several rows, in time of a plain step."""

from __future__ import annotations

import statistics

from .figures import Figure, spread
from .setup import MIXTURES, Setup, Stepper

ROWS = (1, 2, 4, 8, 16)
ROUNDS, PAST = 21, 512
K_AND_4 = {4: 1.15, 8: 1.45, 16: 2.1}
ASKED = {"Q4_0": K_AND_4, "Q4_K_M": K_AND_4, "Q8_0": {4: 1.2, 8: 1.8, 16: 3.2}}


def rows(setup: Setup) -> list[Figure]:
    figures = []
    for mixture in MIXTURES:
        stepper = Stepper(setup.file(mixture), setup.threads)
        steps = [stepper.step(n, PAST) for n in ROWS]
        times = stepper.interleaved(steps, ROUNDS)
        plain = statistics.median(times[0])
        figures.append(Figure(f"{mixture}: plain step", plain, "ms", detail=spread(times[0])))
        for n, found in zip(ROWS[1:], times[1:], strict=True):
            ratio = statistics.median(found) / plain
            asked = ASKED[mixture].get(n)
            name = f"{mixture}: step of {n} rows"
            figures.append(Figure(name, ratio, "x", at_most=asked, detail={"ms": spread(found)}))
    return figures
