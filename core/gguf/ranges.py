"""Copies byte ranges from one file to another, in the kernel where the system can.

They never enter this process: a mapped file that is copied piece by piece would count as memory of
ours, and be slower.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from ..errors import FileFormatError
from .printable import printable_path

STEP: Final = 64 << 20  # bytes between two reports, and between two chances to be interrupted
_BUFFER: Final = 4 << 20
# Error codes of systems and file systems that cannot copy in the kernel.
_UNABLE: Final = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


class FileRange(Struct, frozen=True):
    path: Path
    start: int
    n_bytes: int

    @property
    def nbytes(self) -> int:
        return self.n_bytes


def append_range(file: BinaryIO, part: FileRange, report: Callable[[int], None]) -> None:
    """Appends the range to `file`."""
    file.flush()
    with open(part.path, "rb", buffering=0) as source:
        done, copy = 0, _copy_in_kernel
        while done < part.n_bytes:
            wanted = min(STEP, part.n_bytes - done)
            try:
                n = copy(source.fileno(), file.fileno(), part.start + done, wanted)
            except OSError as error:
                if copy is _copy_by_hand or error.errno not in _UNABLE:
                    raise
                copy = _copy_by_hand
                continue
            if not n:
                raise FileFormatError(
                    f"{printable_path(part.path)}: became shorter while it was read"
                )
            done += n
            report(n)
    file.seek(0, os.SEEK_END)  # the write went past Python's buffer


def _copy_in_kernel(source: int, target: int, start: int, n_bytes: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "no copy_file_range here")
    return os.copy_file_range(source, target, n_bytes, offset_src=start)


def _copy_by_hand(source: int, target: int, start: int, n_bytes: int) -> int:
    os.lseek(source, start, os.SEEK_SET)
    data = memoryview(os.read(source, min(n_bytes, _BUFFER)))
    n = len(data)
    while data:
        data = data[os.write(target, data) :]
    return n
