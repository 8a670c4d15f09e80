"""How far a benchmark is, and how long it will take: one line on stderr, if that is a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .output import Output

if TYPE_CHECKING:
    from ..core.bench.running import Progress


class BenchProgress:
    def __init__(self, output: Output) -> None:
        self._output = output

    def __call__(self, progress: Progress) -> None:
        left = progress.seconds_left
        stage = progress.stage if left is None else f"{progress.stage}, {duration(left)} left"
        self._output.progress(stage, min(progress.done, 0.999))

    def close(self) -> None:
        self._output.clear_progress()


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
