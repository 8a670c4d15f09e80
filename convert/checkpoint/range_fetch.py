"""Many ranges of a remote file, fetched before they are read one by one."""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Final

from ...core.errors import NextnError
from ...core.folders import cache_root
from ...core.gguf.printable import printable_path
from ...core.hub.http_client import HttpClient

ByteRange = tuple[int, int]  # first, end
Fetch = Callable[[HttpClient, int, int], Iterator[bytes]]  # the bytes of a range
_AT_ONCE: Final = 8
_GAP: Final = 1 << 18  # bytes between two ranges that come along: a request takes as long
_REQUEST: Final = 1 << 24  # bytes of a request, at most


def joined_ranges(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """In order, with neighbours as one."""
    found: list[ByteRange] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1] + _GAP:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


class RangeFile:
    """Ranges of a file at their own places in a temporary one, which has holes elsewhere."""

    def __init__(self, ranges: Sequence[ByteRange]) -> None:
        """`ranges`: in order, none next to another."""
        self._ranges = ranges
        self._starts = [start for start, _ in ranges]
        root = cache_root()
        root.mkdir(parents=True, exist_ok=True)
        needed, free = sum(stop - start for start, stop in ranges), shutil.disk_usage(root).free
        if free < needed:
            raise NextnError(
                f"{printable_path(root)} has {free / 1e6:,.0f} MB free, {needed / 1e6:,.0f} MB are "
                "to be fetched into it: make room, or set SPEC_CACHE_DIR"
            )
        # Without a name, so that a killed run leaves nothing.
        self._file = tempfile.TemporaryFile(dir=root)  # noqa: SIM115 - closed by `close`

    def fill(self, client: HttpClient, fetch: Fetch, report: Callable[[int], None]) -> None:
        """Each thread has a twin of `client`. `report` is called with the number of bytes that have
        come."""
        requests = [
            (at, min(at + _REQUEST, stop))
            for start, stop in self._ranges
            for at in range(start, stop, _REQUEST)
        ]
        has_failed, lock, n_done = Event(), Lock(), 0

        def take(share: Sequence[ByteRange]) -> None:
            nonlocal n_done
            own = client.twin()
            try:
                for start, stop in share:
                    at = start
                    for piece in fetch(own, start, stop):
                        if has_failed.is_set():
                            return
                        with lock:
                            self._file.seek(at)
                            self._file.write(piece)
                            n_done += len(piece)
                            report(n_done)
                        at += len(piece)
            except BaseException:
                has_failed.set()
                raise
            finally:
                own.close()

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            shares = [requests[i::_AT_ONCE] for i in range(min(_AT_ONCE, len(requests)))]
            futures = [pool.submit(take, share) for share in shares]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # Ctrl-C as well
                has_failed.set()
                raise

    def read(self, start: int, stop: int) -> memoryview | None:
        """None: these bytes were not fetched."""
        place = bisect_right(self._starts, start) - 1
        if place < 0 or stop > self._ranges[place][1]:
            return None
        data = bytearray(stop - start)
        self._file.seek(start)
        if self._file.readinto(data) != len(data):
            return None
        return memoryview(data).toreadonly()

    def close(self) -> None:
        self._file.close()
