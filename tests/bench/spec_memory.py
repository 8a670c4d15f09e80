"""What taking back a draft costs a recurrent model: factors, against a snapshot for each token."""

from __future__ import annotations

import statistics
import time

import numpy as np

from nextn.core.backend.cpu.backend import CpuBackend
from nextn.core.backend.layers import KvShape, RecurrentShape, StateShape
from nextn.core.backend.step import StepPart, build_step, pending_accepted_after
from nextn.core.state.sizes import PAGE_LEN

from .figures import Figure, spread
from .setup import WINDOW, Setup, Stepper
from .spec_runs import interleaved

# Qwen3.6-27B: 48 of 64 layers are recurrent, 16 attend, and so does its MTP block.
QWEN36_27B = StateShape(
    kv=(KvShape(4, 256, 256),) * 17,
    recurrent=(RecurrentShape.of_heads(16, 48, 128, 128, kernel=4),) * 48,
)
WINDOWS = (4, 17, 65)  # rows of the longest draft with the token before it
ROWS, ROUNDS, CYCLES, PAST = 4, 9, 3, 512
MEGABYTE = 1e6


def factors(setup: Setup) -> list[Figure]:
    backend = CpuBackend(setup.threads)
    stepper = Stepper(setup.file("Q4_0-mtp"), setup.threads, max_rows=16)
    figures = []
    shapes = {"27B, computed": QWEN36_27B, "0.8B": stepper.model.state_shape}
    for name, shape in shapes.items():
        figures += _memory(backend, name, shape)
    held = sum(
        array.nbytes
        for layer in stepper.state.recurrent
        for array in (layer.states, layer.ring, layer.keys, layer.updates, layer.decays)
    )
    counted = slot_bytes(backend, stepper.model.state_shape, WINDOW)
    figures.append(
        Figure(f"0.8B: allocated for {WINDOW} rows / computed", held / counted, "x", at_most=1.0)
    )
    return figures + _times(stepper)


def slot_bytes(backend: CpuBackend, shape: StateShape, window: int) -> int:
    return backend.state_bytes(shape, page_len=PAGE_LEN, window=window)[1]


def _memory(backend: CpuBackend, name: str, shape: StateShape) -> list[Figure]:
    """Bytes kept for one sequence, and moved by one step that verifies as many rows."""
    state, row, ring = state_bytes(shape), row_bytes(backend, shape), ring_bytes(shape)
    figures = [
        Figure(f"{name}: a state", state / MEGABYTE, "MB"),
        Figure(f"{name}: a state / factors of a row", state / factor_bytes(shape), "x"),
        Figure(f"{name}: all that a row leaves", row / MEGABYTE, "MB"),
    ]
    for window in WINDOWS:
        kept = slot_bytes(backend, shape, window)
        moved = 2 * state + 2 * window * row
        copies = window * (state + ring)
        copied = (1 + window) * (state + ring)
        detail = {"bytes": kept, "bytes_of_snapshots": copies, "of_snapshots": kept / copies}
        traffic = {"bytes": moved, "bytes_of_snapshots": copied, "of_snapshots": moved / copied}
        figures += [
            Figure(f"{name}: kept for {window} rows", kept / MEGABYTE, "MB", detail=detail),
            Figure(f"{name}: snapshots for {window} rows", copies / MEGABYTE, "MB"),
            Figure(f"{name}: moved by {window} rows", moved / MEGABYTE, "MB", detail=traffic),
            Figure(f"{name}: moved with snapshots by {window} rows", copied / MEGABYTE, "MB"),
        ]
    return figures


def state_bytes(shape: StateShape) -> int:
    return sum(4 * s.state_width for s in shape.recurrent)


def row_bytes(backend: CpuBackend, shape: StateShape) -> int:
    """Factors, and what went into the convolution."""
    return slot_bytes(backend, shape, 2) - slot_bytes(backend, shape, 1)


def factor_bytes(shape: StateShape) -> int:
    """A key, an update and a decay for each head: with the state, the one after the row."""
    return sum(4 * s.factor_width for s in shape.recurrent)


def ring_bytes(shape: StateShape) -> int:
    """Inputs that the convolution still needs: part of each snapshot."""
    return sum(4 * (s.kernel - 1) * s.channels for s in shape.recurrent)


def _times(stepper: Stepper) -> list[Figure]:
    """Steps as they follow each other where so many rows of each hold."""
    runs = {
        "plain": lambda _: chain_ms(stepper, 1, 1),
        f"{ROWS} rows, all hold": lambda _: chain_ms(stepper, ROWS, ROWS),
        f"{ROWS} rows, none is accepted": lambda _: chain_ms(stepper, ROWS, 1),
        "copying one state": lambda _: copy_ms(stepper),
    }
    found = interleaved(runs, ROUNDS)
    return [
        Figure(f"0.8B Q4_0: {name}", statistics.median(ms), "ms", detail={"ms": spread(ms)})
        for name, ms in found.items()
    ]


def chain_ms(stepper: Stepper, n_rows: int, n_valid: int) -> float:
    """Of one step. Some steps store the state and some do not: as many as repeat are taken."""
    replay, times = n_valid, []
    for _ in range(CYCLES * WINDOW):
        piece = StepPart(
            stepper.tokens[:n_rows], PAST, stepper.pages, n_pending_accepted=replay, n_out=n_rows
        )
        times.append(stepper.ms(build_step([piece])))
        replay = pending_accepted_after(replay, n_rows, n_valid, WINDOW)
    return statistics.fmean(times[WINDOW:])


def copy_ms(stepper: Stepper) -> float:
    """What a snapshot takes one thread; with all of them it is not much faster."""
    targets = [np.empty_like(layer.states) for layer in stepper.state.recurrent]
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for layer, target in zip(stepper.state.recurrent, targets, strict=True):
            np.copyto(target, layer.states)
        times.append(1000 * (time.perf_counter() - start))
    return min(times)
