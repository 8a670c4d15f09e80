"""How a server ends before it can end in order."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def leave_at_signals() -> None:
    """Until they are the server's. Not by an exception: imports can lose one."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_, code=code: leave(code))


def leave(code: int) -> NoReturn:
    """Exit without waiting for threads."""
    sys.stderr.flush()
    os._exit(code)
