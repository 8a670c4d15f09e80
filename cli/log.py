"""Log records of the library as lines on stderr; --quiet leaves the errors."""

from __future__ import annotations

import logging
import os
from typing import Final

from .console import Console, log_record, print_error
from .log_thread import LogThread

LEVELS: Final = ("debug", "info", "warning", "error")
_ALL: Final = "nextn"


class _ToOutput(logging.Handler):
    def __init__(self, output: Console) -> None:
        super().__init__()
        self._output = output
        self._thread = None if output.log_level is None else LogThread()

    def emit(self, record: logging.LogRecord) -> None:
        # All print one line with control characters escaped: a record may quote a request.
        text = self.format(record)
        if self._thread is not None:
            self._output.clear_progress()
            fields = getattr(record, "fields", {})
            self._thread.add(log_record(_level_name(record.levelno), text, fields))
        elif record.levelno >= logging.ERROR:
            print_error(text)
        else:
            self._output.remark(text)

    def flush(self) -> None:
        """Called by `logging.shutdown`."""
        if self._thread is not None:
            self._thread.flush()


def show_log(output: Console) -> None:
    """Print the records of the library; SPEC_DEBUG=1 adds tracebacks."""
    logger = logging.getLogger(_ALL)
    logger.handlers = [_ToOutput(output)]
    level = (output.log_level or "warning").upper()
    logger.setLevel("DEBUG" if os.environ.get("SPEC_DEBUG") == "1" else level)


def log_note(line: str) -> None:
    """A line about a running server, with the time."""
    logging.getLogger(_ALL).info("%s", line)


def _level_name(level: int) -> str:
    return next((name for name in reversed(LEVELS) if level >= _number(name)), LEVELS[0])


def _number(name: str) -> int:
    return logging.getLevelNamesMapping()[name.upper()]
