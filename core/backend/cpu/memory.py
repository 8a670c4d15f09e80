"""Aligned arrays, arenas of them, and buffers that return to a pool after their last use."""

from __future__ import annotations

import mmap
import time
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # a cache line, and the widest vector
HUGE_PAGE = 2 << 20  # of x86-64, and of aarch64 with small pages of 4 KiB
HUGE_AT_ONCE = 4 * HUGE_PAGE
SLOW_HUGE_PAGE_S = 0.0004  # to get one takes 0.1 to 0.2 ms of clearing

Bytes = NDArray[np.uint8]


def aligned(n_bytes: int, *, zeroed: bool = False) -> Bytes:
    """Fresh memory. The system hands out pages when they are first touched, not before."""
    make = np.zeros if zeroed else np.empty
    block = make(n_bytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + n_bytes]


def padded(n_bytes: int) -> int:
    """What an array of so many bytes takes of an arena."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """Memory in one piece, for arrays whose sizes are known beforehand: the weights.

    It lies on huge pages where the system gives them quickly. Only whole ones are requested, so
    that no more becomes resident than is used. The mapping goes with the last array over it.
    """

    is_filled = False

    def __init__(self, n_bytes: int) -> None:
        self._memory = np.empty(0, np.uint8)
        self._first = self._next = self._end = 0
        self._huge_end = 0  # as far as huge pages were requested
        self._gives_huge = hasattr(mmap, "MADV_HUGEPAGE")
        if n_bytes:
            self._mapping = _map_anonymous(n_bytes + HUGE_PAGE)
            self._memory = np.frombuffer(self._mapping, np.uint8)
            self._first = self._next = self._huge_end = -self._memory.ctypes.data % HUGE_PAGE
            self._end = self._next + n_bytes

    def take(self, n_bytes: int) -> Bytes:
        """The next bytes, or memory of their own for more than was announced."""
        start, after = self._next, self._next + padded(n_bytes)
        if after > self._end:
            return aligned(n_bytes)
        self._next = after
        while self._gives_huge and self._huge_end < after:
            self._ask_for_huge()
        return self._memory[start : start + n_bytes]

    def vocab_subset(self) -> Bytes:
        """All that was announced and taken."""
        return self._memory[self._first : self._next]

    def _ask_for_huge(self) -> None:
        """For the next stretch, unless its first page is slow in coming.

        A virtual machine that hands free memory back to its host hands back whole huge pages, and
        each costs a millisecond to get again; small pages come from what was used a moment ago.
        """
        start = self._huge_end
        length = min(HUGE_AT_ONCE, self._end - start) // HUGE_PAGE * HUGE_PAGE
        self._gives_huge = length > 0 and _advise(self._mapping, "MADV_HUGEPAGE", start, length)
        if not self._gives_huge:
            return
        begin = time.perf_counter()
        self._memory[start] = 0  # the fault brings the page
        if time.perf_counter() - begin > SLOW_HUGE_PAGE_S:
            self._gives_huge = False
            rest = start + HUGE_PAGE
            _advise(self._mapping, "MADV_NOHUGEPAGE", rest, len(self._memory) - rest)
        self._huge_end = start + length


def _map_anonymous(n_bytes: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_PRIVATE"):  # shared, Python's default, is a file in the system's eyes
        return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    return mmap.mmap(-1, n_bytes)


def _advise(mapping: mmap.mmap, advice: str, start: int, length: int) -> bool:
    try:
        mapping.madvise(getattr(mmap, advice), start, length)
    except OSError:  # a kernel without huge pages
        return False
    return True


class BufferPool:
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

    def __init__(self, pool: BufferPool, n_bytes: int) -> None:
        self.pool = pool
        self.data = pool.take(n_bytes)
        self.address = self.data.ctypes.data

    def __del__(self) -> None:
        self.pool.give(self.data)
