"""Lines of a server's log on stderr, written by a thread of their own: where stderr is not read any
more, the server goes on."""

from __future__ import annotations

import time
from queue import Empty, Full, Queue
from threading import Thread
from typing import Final

from .console import log_record, write_stderr

MOST_WAITING: Final = 10_000
_LONGEST_FLUSH_S: Final = 1.0


class LogThread:
    is_stuck = False  # stderr is not read: to write to it, or to flush it, would take for ever

    def __init__(self, n_lines: int = MOST_WAITING) -> None:
        """`n_lines`: that may wait; those that come then are lost, and counted."""
        self._lines: Queue[str] = Queue(n_lines)
        self._n_lost = 0
        self._thread = Thread(target=self._run, name="log", daemon=True)

    def add(self, line: str) -> None:
        if self._thread.ident is None:
            self._thread.start()
        try:
            self._lines.put_nowait(line)
        except Full:
            self._n_lost += 1

    def flush(self) -> None:
        """Wait until all is written, but not for a reader that has stopped."""
        end = time.monotonic() + _LONGEST_FLUSH_S
        while self._lines.unfinished_tasks:
            if time.monotonic() > end:
                LogThread.is_stuck = True
                return
            time.sleep(0.005)

    def _run(self) -> None:
        while True:
            self._write(self._lines.get())
            try:
                while True:
                    self._write(self._lines.get_nowait())
            except Empty:
                self._say_what_was_lost()

    def _write(self, line: str) -> None:
        try:
            write_stderr(line)
        finally:
            self._lines.task_done()

    def _say_what_was_lost(self) -> None:
        n, self._n_lost = self._n_lost, 0
        if n:
            lost = f"{n} lines of the log were lost here: stderr was not read"
            write_stderr(log_record("warning", lost, {}))
