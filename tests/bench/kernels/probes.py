"""Ceilings: bandwidth of copying and reading, and what a kernel costs that does nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from nextn.cuda_kernels.kernel import Array, Kernel, Source

from ..figures import Figure
from .place import Place

SOURCE = Source(str(Path(__file__).parent / "probe.cu"))
COPY = Kernel("probe_copy", SOURCE, "a copy", threads=256, registers=64)
READ = Kernel("probe_read", SOURCE, "a sum", threads=256, registers=64)
NOTHING = Kernel("probe_nothing", SOURCE, "nothing", threads=128, registers=16)
KERNELS = (COPY, READ, NOTHING)

PIECE_BYTES = 16384
STEP = 454  # kernels of a step: 7 of each of 64 layers, and 6
BLOCKS_OF_A_PROCESSOR = 8


def bandwidth(place: Place) -> tuple[float, list[Figure]]:
    """Bytes per second of the best copy, and figures of all ways."""
    pieces = 8 if place.is_dry else 65536  # 1 GiB
    piece = place.random.integers(0, 256, PIECE_BYTES, np.uint8)
    source = place.tiled(piece, pieces)
    target = place.zeros(source.shape, np.uint8)
    grid = min(pieces, BLOCKS_OF_A_PROCESSOR * place.launcher.n_processors)
    sums = place.zeros((grid, 8), np.uint32)
    size = pieces * PIECE_BYTES

    def copy() -> None:
        place.launcher.launch(COPY, grid, [source, target, pieces])

    def read() -> None:
        place.launcher.launch(READ, grid, [source, sums, pieces])

    copy()
    read()
    check(place, piece, pieces, target, sums)
    ways: list[tuple[str, int, Callable[[], None]]] = [
        ("copied by a kernel", 2 * size, copy),
        ("copied by the driver", 2 * size, lambda: place.copy(source, target)),
        ("read by a kernel", size, read),
    ]
    rates = {name: moved / place.measure([way], early=False) for name, moved, way in ways}
    figures = [Figure(name, rate / 1e9, "GB/s") for name, rate in rates.items()]
    return max(rate for name, rate in rates.items() if "copied" in name), figures


def check(place: Place, piece: np.ndarray, pieces: int, target: Array, sums: Array) -> None:
    copied = place.get(target[: 2 * PIECE_BYTES])
    total = int(piece.view(np.uint32).sum(dtype=np.uint64)) * pieces % 2**32
    if not np.array_equal(copied, np.tile(piece, 2)):
        raise AssertionError("probe_copy: what was copied is not what was there")
    if int(place.get(sums).sum(dtype=np.uint64)) % 2**32 != total:
        raise AssertionError("probe_read: not all was read")


def gaps(place: Place) -> list[Figure]:
    """A kernel of a graph that does nothing, with one block and with one for each processor."""
    found = []
    for blocks in (1, place.launcher.n_processors):
        nothing = partial(place.launcher.launch, NOTHING, blocks, [None, None, 0])
        launches = [nothing] * (2 if place.is_dry else STEP)
        for early in (False, True):
            seconds = place.measure(launches, early=early)
            name = f"{STEP} empty kernels of {blocks} blocks{', early' if early else ''}"
            found.append(Figure(name, seconds * 1e6, "us each"))
            found.append(Figure(f"{name}: a step", seconds * STEP * 1e3, "ms"))
    return found
