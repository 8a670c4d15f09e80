"""Reads a whole file up to a limit: a path may lead to an endless device or to a disk image."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO, Final

_MIB: Final = 1 << 20


def read_bounded(path: Path, most: int) -> bytes:
    """Returns all bytes; OSError if there are more than `most`, a multiple of 1 MiB."""
    with open(path, "rb") as file:
        return read_open_bounded(file, most)


def read_open_bounded(file: BinaryIO, most: int) -> bytes:
    """Returns the rest of an open file, with the same limit."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // _MIB} MiB", str(file.name))
    return data
