"""How far a benchmark is, and how long it will take: one line on stderr, if that is a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .console import Console

if TYPE_CHECKING:
    from ..core.bench.paired_run import RunProgress


SHORT_S: Final = 10.0  # not worth a line
LONG_S: Final = 600.0
KNOWN: Final = 0.02  # of the run, after which the rest can be estimated


class BenchProgress:
    def __init__(self, output: Console) -> None:
        self._output = output
        self._has_forecast = False

    def __call__(self, progress: RunProgress) -> None:
        left = progress.seconds_left
        if left is not None and progress.done > KNOWN and not self._has_forecast:
            self._has_forecast = True
            if left > SHORT_S:
                self._output.remark(_forecast(left))
        stage = progress.stage if left is None else f"{progress.stage}, {duration(left)} left"
        self._output.progress(stage, min(progress.done, 0.999))


def _forecast(left: float) -> str:
    shorter = ""
    if left > LONG_S:
        shorter = "; --limit, --category, -n and --time make it shorter"
    return f"this will take about {duration(left)} more{shorter}; Ctrl-C prints what there is"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
