"""Where bytes of a checkpoint's file come from."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Protocol

from ...core.errors import FileFormatError
from ...core.gguf.printable import printable_path


class ByteSource(Protocol):
    """A file that can be read in pieces, wherever it lies."""

    label: str  # as it may be printed
    size: int

    def read(self, start: int, stop: int) -> bytes | memoryview: ...

    def close(self) -> None: ...


class LocalSource:
    """A mapped file. Nothing is copied before arithmetic is done with it."""

    def __init__(self, path: Path) -> None:
        self.label = printable_path(path)
        with path.open("rb") as file:
            self.size = file.seek(0, 2)
            if not self.size:
                raise FileFormatError(f"{self.label} is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, start: int, stop: int) -> memoryview:
        if not 0 <= start <= stop <= self.size:
            raise FileFormatError(f"{self.label} ends before byte {stop}")
        return memoryview(self._map)[start:stop]

    def close(self) -> None:
        """Memory goes back when the last array over it is gone."""
        try:
            self._map.close()
        except BufferError:
            return
