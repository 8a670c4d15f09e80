"""Ctrl-C while ranks talk: it waits until what was begun has been answered."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Half a step on one rank and a whole one on the others could not be made up for. A second
    Ctrl-C ends the process at once; the other ranks end with it."""
    handler = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and callable(handler)
    if not is_ours or not callable(handler):
        yield
        return
    caught: list[FrameType | None] = []

    def later(number: int, frame: FrameType | None) -> None:
        if caught:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        caught.append(frame)

    signal.signal(signal.SIGINT, later)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(signal.SIGINT, caught[0])
