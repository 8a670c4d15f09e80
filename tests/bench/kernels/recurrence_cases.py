"""Recurrences in parts: Mamba-2 with heads of 64 values and states of 128; and activations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nextn.cuda_kernels.activate_rows import activate_rows
from nextn.cuda_kernels.gdn_layout import GdnSequences, GdnState
from nextn.cuda_kernels.recurrence_parts import (
    Columns,
    Convolution,
    LayerStep,
    ScanWeights,
    convolve,
    finish,
    keep,
    scan,
)
from nextn.cuda_kernels.state_layout import StateLayout

from .case import Case, Work
from .models import Sizes
from .place import Floats, Place, distance

WINDOW, KERNEL, VALUES, STATE, EPS = 16, 4, 64, 128, 1e-5
Exact = NDArray[np.float64]


def recurrences(sizes: Sizes) -> Iterator[Case]:
    for rows in (1, 4, 16):
        make = partial(_layer, n_heads=max(1, sizes.hidden // 32), rows=rows)
        yield Case(f"{sizes.name} recurrence, {rows} rows", make)


def activations(sizes: Sizes) -> Iterator[Case]:
    for rows in sizes.rows:
        make = partial(_activate, width=sizes.ffn, rows=rows)
        yield Case(f"{sizes.name} activate_rows {sizes.ffn}, {rows} rows", make)


def _layer(place: Place, n_heads: int, rows: int) -> Work:
    """All launches of a layer, of a sequence that begins."""
    inner, ring = n_heads * VALUES, WINDOW + KERNEL - 1
    channels = inner + 2 * STATE
    layout = StateLayout(1, n_heads, STATE, VALUES, KERNEL, channels, 1, WINDOW, ring)
    normal = place.random.standard_normal
    x = normal((rows, inner + channels + n_heads), np.float32)
    weights, bias, norm = (normal(s, np.float32) for s in ((channels, KERNEL), channels, inner))
    dt_bias, d = normal((2, n_heads), np.float32)
    a = -np.exp(normal(n_heads, np.float32))
    arrays = {
        name: place.zeros(size, np.int32 if name == "header" else np.float32)
        for name, size in layout.array_shapes(1).items()
    }
    sequences = GdnSequences(*(place.ints(*each) for each in ((0, rows), (0,), (0,), (0,))))
    at = LayerStep(layout, GdnState(**arrays), sequences)
    there = place.put(x)
    made, out = place.zeros((rows, channels)), place.zeros((rows, inner))
    convolution = Convolution(place.put(weights), place.put(bias), activated=True)
    of_scan = ScanWeights(place.put(dt_bias), place.put(a), place.put(d))
    norm_there = place.put(norm)

    def launch() -> None:
        inputs = Columns(there, inner)
        convolve(place.launcher, at, inputs, convolution, made)
        scan(place.launcher, at, made, Columns(there, inner + channels), of_scan, out)
        finish(place.launcher, out, there, 1, norm=norm_there, eps=EPS, is_delta=False)
        keep(place.launcher, at, inputs)

    def error() -> float:
        scanned = _exact(x[:, inner:].astype(np.float64), weights, bias, dt_bias, a, d)
        gated = scanned * _silu(x[:, :inner].astype(np.float64))
        return distance(place.get(out), gated / np.sqrt((gated**2).mean(1) + EPS)[:, None] * norm)

    moved = 4 * (layout.state_values * 2 + rows * (channels + 2 * inner))
    return Work(launch, moved, error=error)


def _exact(
    rows: Exact, weights: Floats, bias: Floats, dt_bias: Floats, a: Floats, d: Floats
) -> Exact:
    channels, n_heads = len(weights), len(a)
    padded = np.concatenate([np.zeros((KERNEL - 1, channels)), rows[:, :channels]])
    taps = np.stack([padded[j : j + len(rows)] for j in range(KERNEL)], -1)
    made = _silu((taps * weights).sum(-1) + bias)
    values = made[:, : n_heads * VALUES].reshape(len(rows), n_heads, VALUES)
    keys, queries = np.split(made[:, n_heads * VALUES :], 2, axis=1)
    waits = np.logaddexp(0, rows[:, channels:] + dt_bias)
    state, out = np.zeros((n_heads, VALUES, STATE)), []
    for x, key, query, wait in zip(values, keys, queries, waits, strict=True):
        update = wait[:, None] * x
        state = state * np.exp(a * wait)[:, None, None] + update[:, :, None] * key
        out.append((state @ query + d[:, None] * x).reshape(-1))
    return np.stack(out)


def _silu(x: Exact) -> Exact:
    made: Exact = x / (1 + np.exp(-x))
    return made


def _activate(place: Place, width: int, rows: int) -> Work:
    x = place.random.standard_normal((rows, width), np.float32)
    there = place.put(x)
    exact = np.maximum(x.astype(np.float64), 0) ** 2
    launch = partial(activate_rows, place.launcher, there, "relu-squared")
    return Work(launch, 2 * x.nbytes, error=lambda: distance(place.get(there), exact))
