"""The kernel that picks tokens, as a function of Python."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np

from .. import picking
from ..layers import Floats
from .inputs import Words
from .kernels.pick_kernel import PickWords, write_picks
from .kernels.sample import PICK, write_pick
from .machine_code import Kernels
from .memory import aligned
from .program import FloatRows, Recording, row_set_capacity

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


def add_picks(r: Recording, logits: FloatRows, maxima: FloatRows, n_threads: int) -> Words:
    """Let the program pick by `step.requests`; returns where the tokens will be."""
    picked = np.zeros(row_set_capacity(r, logits.row_set), np.int64)
    scratch = aligned(n_threads * picking.SCRATCH_BYTES)
    words = r.add("picks", write_picks, [0] * PickWords.COUNT)
    for word, value in {
        PickWords.STEP: r.inputs.address,
        PickWords.LOGITS: logits.address,
        PickWords.LOGITS_BYTES: 4 * logits.width,
        PickWords.MAXIMA: maxima.address,
        PickWords.MAXIMA_BYTES: 4 * maxima.width,
        PickWords.SCRATCH: scratch.ctypes.data,
        PickWords.PICKED: picked.ctypes.data,
    }.items():
        words[word] = value
    r.held += [picked, scratch]
    return picked
