"""Gated DeltaNet layers: a step of one and of several sequences, and how rows get into the ring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from support.gdn import EPS, GdnLayer, KernelRun, Part, ReferenceRun

from nextn.cuda_kernels.gdn_layout import GdnSequences, GdnShape, GdnState, replay_bytes
from nextn.cuda_kernels.gdn_rows import keep_rows, ring_rows
from nextn.cuda_kernels.gdn_step import (
    STEP_VARIANTS,
    GdnRows,
    GdnWeights,
    GdnWorkspace,
    gdn_step,
    n_arrivals,
    raw_shape,
)
from nextn.cuda_kernels.norm_quant import NormOutputs

from .case import Asked, Case, Work
from .models import Sizes
from .place import Place, distance, packed_bytes

WINDOW, CONV = 16, 4
KEPT = 4  # factors from which on the state is stored
PAST = 1000
# Rows, factors that hold, asked time in us on the 27B.
STEPS = ((1, 1, 2.5), (1, KEPT, None), (4, 4, 3.5), (4, 1, 3.5), (16, 16, 6.0))


@dataclass(frozen=True)
class Step:
    rows: int
    n_pending_accepted: int
    n_sequences: int = 1
    rows_per_thread: int | None = None


def steps(sizes: Sizes) -> Iterator[Case]:
    for rows, replay, us in STEPS:
        asked = Asked(us=us if sizes.name == "27B" else None)
        name = f"{sizes.name} gdn_step, {rows} rows after {replay}"
        make = partial(_step, shape=delta_shape(sizes), step=Step(rows, replay))
        yield Case(name, make, asked=asked)
    for variant in STEP_VARIANTS[sizes.delta_dim]:
        name = f"{sizes.name} gdn_step, 4 rows after 4, {variant} state rows per thread"
        make = partial(_step, shape=delta_shape(sizes), step=Step(4, 4, 1, variant))
        yield Case(name, make)
    for rows in (1, 4):
        name = f"{sizes.name} gdn_step, 8 sequences of {rows} rows after {rows}"
        yield Case(name, partial(_step, shape=delta_shape(sizes), step=Step(rows, rows, 8)))


def delta_shape(sizes: Sizes) -> GdnShape:
    ring = WINDOW + CONV - 1
    heads = sizes.key_heads, sizes.value_heads
    return GdnShape(*heads, sizes.delta_dim, CONV, WINDOW, ring, tiled=True)


def _step(place: Place, shape: GdnShape, step: Step) -> Work:
    layer, n = _layer(shape), step.n_sequences
    n_rows = n * step.rows
    state = _state(place, shape, n)
    conv, dt_bias = place.put(layer.conv), place.put(layer.dt_bias)
    weights = GdnWeights(shape, conv, dt_bias, place.put(layer.a), place.put(layer.norm), EPS)
    starts = np.arange(0, n_rows + 1, step.rows, dtype=np.int32)
    slots = np.arange(n, dtype=np.int32)
    sequences = GdnSequences(
        place.put(starts),
        place.put(slots),
        place.ints(*[PAST] * n),
        place.ints(*[step.n_pending_accepted] * n),
    )
    gates = place.put(layer.true_rows[:n_rows])
    arrivals = place.zeros(n_arrivals(shape, n_rows, n), np.int32)
    launch = partial(
        gdn_step,
        place.launcher,
        weights,
        state,
        sequences,
        GdnRows(gates, shape.channels, max_rows=step.rows),
        GdnWorkspace(place.zeros(raw_shape(shape, n_rows)), arrivals),
        NormOutputs(place.packed(n_rows, shape.value_width)),
        rows_per_thread=step.rows_per_thread,
    )
    stores = step.n_pending_accepted >= KEPT or step.n_pending_accepted + step.rows > WINDOW
    each = replay_bytes(shape, 1, step.rows, step.n_pending_accepted, stores=stores).total
    inputs = 4 * (step.rows * (shape.channels + shape.gates_width) + (CONV - 1) * shape.channels)
    moved = n * (each + inputs) + packed_bytes(n_rows, shape.value_width)
    return Work(launch, moved, error=lambda: _error(place, shape, step))


@cache
def _layer(shape: GdnShape) -> GdnLayer:
    return GdnLayer(shape, n_rows=2 * WINDOW + 8)


def _state(place: Place, shape: GdnShape, n_slots: int) -> GdnState:
    arrays = {
        name: place.normal(*size)
        for name, size in shape.array_shapes(n_slots).items()
        if name != "header"
    }
    return GdnState(**arrays, header=place.zeros((n_slots, 2), np.int32))


def _error(place: Place, shape: GdnShape, step: Step) -> float:
    """Of the rows of a text's second step, whose factors of the first hold; packed."""
    layer = _layer(shape)
    rows = layer.true_rows
    first, second = (
        rows[: step.n_pending_accepted],
        rows[step.n_pending_accepted : step.n_pending_accepted + step.rows],
    )
    parts = (
        [Part(0, 0, 0, first)],
        [Part(0, step.n_pending_accepted, step.n_pending_accepted, second)],
    )
    run, reference = KernelRun(place.machine, layer, 1), ReferenceRun(layer, 1)
    for part in parts:
        made, exact = run.step(part), reference.step(part)
    return distance(made.rows, exact)


def rows(sizes: Sizes) -> Iterator[Case]:
    shape = delta_shape(sizes)
    for n_rows in (1, 16):
        name = f"{sizes.name} gdn_ring_rows, {n_rows} rows"
        yield Case(name, partial(_ring_rows, shape=shape, n_rows=n_rows), tolerance=0.0)
    name = f"{sizes.name} gdn_keep_rows, 512 rows"
    yield Case(name, partial(_keep_rows, shape=shape, n_rows=512), tolerance=0.0)


def _one(place: Place, n_rows: int) -> GdnSequences:
    return GdnSequences(place.ints(0, n_rows), *(place.ints(v) for v in (0, PAST, 0)))


def _ring_rows(place: Place, shape: GdnShape, n_rows: int) -> Work:
    found = place.zeros(n_rows, np.int32)
    wanted = (PAST + np.arange(n_rows)) % shape.ring_rows
    launch = partial(ring_rows, place.launcher, shape, _one(place, n_rows), found, spare=-1)
    return Work(launch, 4 * n_rows, error=lambda: float((place.get(found) != wanted).mean()))


def _keep_rows(place: Place, shape: GdnShape, n_rows: int) -> Work:
    values = place.random.standard_normal((n_rows, shape.channels), np.float32)
    ring = place.zeros((1, shape.ring_rows, shape.channels))
    last = np.arange(n_rows - shape.ring_rows, n_rows)

    def error() -> float:
        return float((place.get(ring)[0, (PAST + last) % shape.ring_rows] != values[last]).mean())

    launch = partial(keep_rows, place.launcher, shape, _one(place, n_rows), place.put(values), ring)
    return Work(launch, 2 * 4 * shape.ring_rows * shape.channels, error=error)
