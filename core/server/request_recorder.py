"""Tokens of requests on disk, to train drafters on: `spec serve --record DIR`.

A line a request, as `spec convert train --texts DIR` reads it. A thread of its own writes, so that
no request waits for the disk. Files are begun anew now and then, and the oldest ones removed, so
that all of a folder stay within its budget.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Final

import msgspec
from msgspec import Struct

from ..errors import ConfigError

FILES: Final = "requests-*.jsonl"
_PARTS: Final = 8  # files that a budget is divided among
_log: Final = logging.getLogger(__name__)


class RecordedRequest(Struct, frozen=True):
    tokens: list[int]
    n_prompt: int  # the answer begins there
    model: str  # fingerprint


class RequestRecorder:
    def __init__(self, folder: Path, budget: int) -> None:
        """`budget`: bytes of all files in the folder, those of earlier servers included. Raises a
        `ConfigError` if they cannot be written."""
        self._folder, self._budget = folder, budget
        self._path: Path | None = None  # of the file that is written to
        self._waiting: SimpleQueue[RecordedRequest | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="recorder", daemon=True)
        check_record_folder(folder)

    def add(self, tokens: Sequence[int], n_prompt: int, model: str) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._waiting.put(RecordedRequest(list(tokens), n_prompt, model))

    def close(self) -> None:
        """Waits until all is written."""
        if self._thread.ident is not None:
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (request := self._waiting.get()) is not None:
            try:
                self._write(msgspec.json.encode(request) + b"\n")
            except OSError as error:
                _log.error("--record: %s; requests are no longer recorded", error)
                while self._waiting.get() is not None:
                    pass
                return

    def _write(self, line: bytes) -> None:
        sizes = self._sizes()
        if self._path is None or sizes.get(self._path, self._budget) > self._budget // _PARTS:
            self._path = self._folder / f"requests-{time.time_ns():020d}-{os.getpid()}.jsonl"
        self._make_room(sizes, len(line))
        with open(self._path, "ab", opener=_for_its_owner) as file:
            file.write(line)

    def _sizes(self) -> dict[Path, int]:
        """Of all files, oldest first. Other servers of this folder may remove some meanwhile."""
        found = {}
        for path in sorted(self._folder.glob(FILES)):
            with suppress(FileNotFoundError):
                found[path] = path.stat().st_size
        return found

    def _make_room(self, sizes: Mapping[Path, int], n: int) -> None:
        """Remove the oldest files until so many bytes fit, but for the one that is written to."""
        total = sum(sizes.values()) + n
        for path, size in sizes.items():
            if total > self._budget and path != self._path:
                path.unlink(missing_ok=True)
                total -= size


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def check_record_folder(folder: Path) -> None:
    """Make the folder if it is not there. Raises a `ConfigError` if it cannot be written to."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--record {folder}: this is not a folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--record {folder}: {error.strerror}") from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"--record {folder}: this folder cannot be read and written")
