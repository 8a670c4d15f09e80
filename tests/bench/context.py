"""A long context: time of a step against the bytes that it reads."""

from __future__ import annotations

import statistics

import numpy as np

from .figures import Figure, spread
from .setup import MIXTURES, Setup, Stepper

CONTEXTS = (512, 4096, 16384)
ROUNDS = 15
ASKED = 1.15


def long_context(setup: Setup) -> list[Figure]:
    figures = []
    for mixture in MIXTURES:
        stepper = Stepper(setup.file(mixture), setup.threads, max(CONTEXTS) + 64, max_rows=16)
        fill_cells(stepper)
        steps = [stepper.step(1, past) for past in CONTEXTS]
        times = stepper.interleaved(steps, ROUNDS)
        if not np.isfinite(stepper.run(steps[-1]).logits).all():
            raise AssertionError("logits over the filled cells are not finite: nothing was timed")
        ms = [statistics.median(found) for found in times]
        read = [bytes_read(stepper, past) for past in CONTEXTS]
        ratio = (ms[-1] / ms[0]) / (read[-1] / read[0])
        detail = {
            "ms": {str(n): spread(found) for n, found in zip(CONTEXTS, times, strict=True)},
            "bytes": dict(zip(map(str, CONTEXTS), read, strict=True)),
            "time_ratio": ms[-1] / ms[0],
            "bytes_ratio": read[-1] / read[0],
        }
        name = f"{mixture}: 16k / 0.5k, time over bytes"
        figures.append(Figure(name, ratio, "x", at_most=ASKED, detail=detail))
        for n, each in zip(CONTEXTS, ms, strict=True):
            figures.append(Figure(f"{mixture}: step at {n}", each, "ms"))
    return figures


def fill_cells(stepper: Stepper) -> None:
    """Keys and values in [-1, 1), instead of reading a prompt of that length."""
    rng = np.random.default_rng(0)
    for layer in stepper.state.kv:
        for cells in (layer.keys, layer.values):
            values = rng.random(cells.shape, np.float32) * 2 - 1
            cells[:] = values.astype(np.float16).view(np.uint16)


def bytes_read(stepper: Stepper, past: int) -> int:
    """By a plain step: weights, recurrent state, and the keys and values of all cells."""
    return stepper.backend.weight_bytes() + state_bytes(stepper) + past * cell_bytes(stepper)


def state_bytes(stepper: Stepper) -> int:
    """Of the states of a slot; as many are written. Factors and rings are next to nothing."""
    return sum(layer.states[0].nbytes for layer in stepper.state.recurrent)


def cell_bytes(stepper: Stepper) -> int:
    shape = stepper.model.state_shape
    return sum(2 * s.n_kv_heads * (s.key_dim + s.value_dim) for s in shape.kv)
