"""A lock that one process holds until it ends, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class LockedError(Exception):
    """Another process, or another object of this one, has the lock."""


class WriterLock:
    """The file stays: to remove it would let two processes lock two files of one name."""

    def __init__(self, path: Path) -> None:
        """Raises LockedError, or OSError if there can be no such file."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._handle)
        except OSError:
            os.close(self._handle)
            raise LockedError(path) from None

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
