"""The kernel that picks tokens, as a function of Python."""

from __future__ import annotations

import ctypes
from typing import Final

from .. import picking
from ..layers import Floats
from .compile import Kernels
from .kernels.sample import PICK, write_pick
from .memory import aligned
from .program import Recording

_NAME: Final = "pick"
_WORD: Final = ctypes.c_int64
# It holds the interpreter's lock: to give that away for some microseconds and to wait for it
# again costs more.
_FUNCTION: Final = ctypes.PYFUNCTYPE(_WORD, *[_WORD] * 5)


class Picker:
    """Of rows that lie in one place at every step."""

    def __init__(self, kernels: Kernels, logits: Floats, maxima: Floats) -> None:
        self._held = kernels, logits, maxima, aligned(picking.SCRATCH_BYTES)  # code and arrays
        self._function = _FUNCTION(kernels.addresses[_NAME])
        self._logits, self._maxima, self._scratch = (a.ctypes.data for a in self._held[1:])
        self._logits_step, self._maxima_step = logits.strides[0], maxima.strides[0]

    def pick(self, row: int, request: int, position: int) -> int:
        """See `HostOutput.pick`."""
        logits = self._logits + row * self._logits_step
        maxima = self._maxima + row * self._maxima_step
        token: int = self._function(logits, maxima, request, self._scratch, position)
        return token

    @staticmethod
    def add_to(recording: Recording) -> None:
        """Let it be compiled with the kernels of a program."""
        recording.writers[_NAME] = write_pick
        recording.kinds[_NAME] = PICK
