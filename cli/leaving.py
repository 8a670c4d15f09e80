"""How a server ends before it can end in order."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import NoReturn

import typer

from .log_thread import LogThread


def leave_at_signals() -> None:
    """Until they are the server's. Not by an exception: imports can lose one."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_, code=code: leave(code))


def end_server(code: int, *, has_ended: bool) -> NoReturn:
    """`has_ended`: whether all of its threads have. One in the middle of a load, of a long step, or
    of a line that is not read cannot be stopped."""
    logging.shutdown()
    if LogThread.is_stuck or not has_ended:
        leave(code)
    raise typer.Exit(code)


def leave(code: int) -> NoReturn:
    """Exit without waiting for threads, but for that of the log."""
    logging.shutdown()
    if not LogThread.is_stuck:
        sys.stderr.flush()
    os._exit(code)
