"""Ctrl-C: the first ends the work in order, the second ends the process at once."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


def interrupt_once(_signal: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


def arm() -> None:
    # A shell starts background jobs with SIGINT ignored, and that is to stay so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt_once)


def rearm() -> None:
    """Catch Ctrl-C again after it ended one answer, and not the program."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, interrupt_once)
