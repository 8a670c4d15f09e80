"""Log records of the library as lines on stderr; --quiet leaves the errors."""

from __future__ import annotations

import logging
import os
from typing import Final

from .console import Console, print_error

_ALL: Final = "nextn"


class _ToOutput(logging.Handler):
    def __init__(self, output: Console) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        # Both print one line with control characters escaped: a record may quote a request.
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            print_error(text)
        else:
            self._output.remark(text)


def show_log(output: Console) -> None:
    """Print the records of the library; SPEC_DEBUG=1 adds tracebacks."""
    logger = logging.getLogger(_ALL)
    logger.handlers = [_ToOutput(output)]
    logger.setLevel(logging.DEBUG if os.environ.get("SPEC_DEBUG") == "1" else logging.WARNING)
