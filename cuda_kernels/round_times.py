"""When the parts of a round began, by the device's own clock: between them lies what each took."""

from __future__ import annotations

from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape, require_shape

SOURCE = Source("round_times.cu")
NOTE_TIME = Kernel("note_time", SOURCE, "none: a clock", threads=32, registers=24)
KERNELS = (NOTE_TIME,)


def note_time(launcher: Launcher, times: Array, counter: Array, mark: int) -> None:
    """All that was launched before has ended: `times[counter % n, mark]`, int64, nanoseconds.

    `times` may be memory that the host sees too; `counter`: of `Records` in spec_accept.py.
    """
    n_rounds, n_marks = matrix_shape("times", times)
    require_shape("counter", counter, (1,))
    if not 0 <= mark < n_marks:
        raise ValueError(f"mark {mark} of {n_marks}")
    launcher.launch(NOTE_TIME, 1, [times, n_marks, n_rounds, counter, mark])
