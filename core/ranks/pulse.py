"""What a rank is doing, in memory that it shares with rank 0: a sign of life, and where it is."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final

BEAT_S: Final = 0.25
_CELL: Final = 8


class Place(IntEnum):
    STARTS = 0  # opens its device, loads weights: may take as long as it takes
    IDLE = 1  # waits for orders
    WAITS = 2  # for rows of its neighbours
    RUNS = 3  # does as it was told


class Pulse:
    """One for each rank other than 0; either side has its own over the same file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * _CELL)
        self._cells = memoryview(self._memory).cast("Q")

    @classmethod
    def make(cls, path: Path) -> Pulse:
        path.write_bytes(bytes(2 * _CELL))
        return cls(path)

    @property
    def beats(self) -> int:
        """0 until the process has come so far."""
        return self._cells[0]

    @property
    def place(self) -> Place:
        return Place(self._cells[1])

    def start(self) -> None:
        """In the rank's process: from a thread of its own, which a process that stands still, or
        that holds on to its interpreter, does not let run."""
        threading.Thread(target=self._beat, daemon=True).start()

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        before, self._cells[1] = self._cells[1], place
        yield
        self._cells[1] = before  # not after an error: the process ends

    def _beat(self) -> None:
        while True:
            self._cells[0] += 1
            time.sleep(BEAT_S)
