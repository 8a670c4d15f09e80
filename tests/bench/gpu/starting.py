"""Kernels of a step started one after the other, and early: what that brings, and that no bit of
the result depends on it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import numpy as np

from nextn.core.backend.layers import Floats
from nextn.core.backend.step import Step

from ..figures import Figure, spread
from .decoding import SHORT
from .loaded import Loaded, Steps

WIDTHS = (1, 4)
HOW = {"in turn": False, "early": True}


def starts(loaded: Loaded, seconds: float) -> list[Figure]:
    runs: dict[str, Callable[[int], float]] = {}
    first: dict[str, Floats] = {}
    for how, is_early in HOW.items():
        with loaded.place.starting(early=is_early):
            for n in WIDTHS:
                steps = Steps(loaded, SHORT)
                step = steps.step(n, SHORT)
                first[f"{n} {how}"] = steps.run(step).logits.copy()
                steps.ms(step)  # from here on it is a graph, of launches that start like this
                runs[f"{n} {how}"] = partial(_ms, steps, step)
    found = loaded.place.interleaved(runs, seconds)
    figures = []
    for n in WIDTHS:
        rows = f"{n} {'row' if n == 1 else 'rows'}"
        turn, early = (found[f"{n} {how}"] for how in HOW)
        gain = statistics.median(a / b for a, b in zip(turn, early, strict=True))
        other = first[f"{n} in turn"].view(np.uint32) != first[f"{n} early"].view(np.uint32)
        figures += [
            Figure(f"{rows}, in turn", statistics.median(turn), "ms", detail={"ms": spread(turn)}),
            Figure(f"{rows}, early", statistics.median(early), "ms", detail={"ms": spread(early)}),
            Figure(f"{rows}: in turn / early", gain, "x"),
            Figure(f"{rows}, early: other bits", int(other.sum()), at_most=0),
        ]
    return figures


def _ms(steps: Steps, step: Step, _: int) -> float:
    return steps.ms(step)
