"""Ctrl-C at a chosen boundary between two instructions of Python code."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# The interpreter looks for signals behind these. So no signal comes between the body of a `with`
# and its end, where a lock would stay locked.
LOOKS = ("RESUME", "JUMP_BACKWARD", "CALL")


class Boundary:
    """Raises KeyboardInterrupt before the instruction of this number in the code that is called."""

    def __init__(self, at: int, *, where_signals_come: bool = False) -> None:
        """`where_signals_come`: count only the boundaries at which a real Ctrl-C can be raised."""
        self.at, self.n_seen, self.is_hit = at, 0, False
        self._is_strict = where_signals_come
        self._last: dict[FrameType, str] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and self._counts(frame):
            self.n_seen += 1
            if self.n_seen == self.at:
                self.is_hit = True
                raise KeyboardInterrupt
        return self.trace

    def _counts(self, frame: FrameType) -> bool:
        if not self._is_strict:
            return True
        last = self._last.get(frame, "")
        self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        return last.startswith(LOOKS)

    def call(self, function: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        # CPython 3.11 loses its stack when a trace function raises inside a collector's callback,
        # and pytest's plugins have such callbacks.
        gc.disable()
        sys.settrace(self.trace)
        try:
            return function()
        finally:
            sys.settrace(before)
            gc.enable()
            self._last.clear()
