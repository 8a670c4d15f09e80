"""Aligned arrays, and buffers that go back to a pool when nobody needs them any more."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # a cache line, and the widest vector

Bytes = NDArray[np.uint8]


def aligned(n_bytes: int, *, zeroed: bool = False) -> Bytes:
    """Fresh memory. The system hands out pages when they are first touched, not before."""
    make = np.zeros if zeroed else np.empty
    block = make(n_bytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + n_bytes]


class Pool:
    """Buffers by size. A buffer given back while recording is used again by later entries only."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = defaultdict(list)
        self.all: list[Bytes] = []

    def take(self, n_bytes: int) -> Bytes:
        free = self._free[n_bytes]
        if free:
            return free.pop()
        made = aligned(n_bytes)
        self.all.append(made)
        return made

    def give(self, buffer: Bytes) -> None:
        self._free[len(buffer)].append(buffer)


class Buffer:
    """A loan from a pool, for as long as this object lives."""

    __slots__ = ("address", "data", "pool")

    def __init__(self, pool: Pool, n_bytes: int) -> None:
        self.pool = pool
        self.data = pool.take(n_bytes)
        self.address = self.data.ctypes.data

    def __del__(self) -> None:
        self.pool.give(self.data)
