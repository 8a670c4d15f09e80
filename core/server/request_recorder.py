"""Tokens of requests on disk, to train drafters on: `spec serve --record DIR`.

A line a request, as `spec convert train --texts DIR` reads it. A thread of its own writes, so that
no request waits for the disk. Files are begun anew now and then, and the oldest ones removed, so
that all of a folder stay within its budget.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
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
        if self._path is None or self._path.stat().st_size > self._budget // _PARTS:
            self._path = self._begin_file()
        self._make_room(len(line))
        with self._path.open("ab") as file:
            file.write(line)

    def _begin_file(self) -> Path:
        path = self._folder / f"requests-{time.time_ns():020d}-{os.getpid()}.jsonl"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return path

    def _make_room(self, n: int) -> None:
        """Remove the oldest files until so many bytes fit, but for the one that is written to."""
        sizes = {path: path.stat().st_size for path in sorted(self._folder.glob(FILES))}
        total = sum(sizes.values()) + n
        for path, size in sizes.items():
            if total > self._budget and path != self._path:
                path.unlink(missing_ok=True)
                total -= size


def check_record_folder(folder: Path) -> None:
    """Make the folder if it is not there. Raises a `ConfigError` if it cannot be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--record {folder}: {error.strerror}") from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"--record {folder}: this folder cannot be read and written")
