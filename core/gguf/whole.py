"""Reading a whole file that may be anything: a device that never ends, or a disk's image."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO, Final

_MIB: Final = 1 << 20


def read_whole(path: Path, most: int) -> bytes:
    """OSError if it has more than `most` bytes, a number of whole MiB."""
    with open(path, "rb") as file:
        return read_rest(file, most)


def read_rest(file: BinaryIO, most: int) -> bytes:
    """The same of an open file."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // _MIB} MiB", str(file.name))
    return data
