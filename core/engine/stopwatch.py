"""Where the time of an engine's steps goes."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import astuple, fields


class PhaseTimes(Struct):
    """Seconds in all that an engine's steps took.

    `verify` is the forward pass of the model, prompts included; tokens that a backend picks itself
    are picked there. In a device loop `draft` is what enqueuing takes, and `verify` all the rest.
    """

    draft: float = 0.0
    verify: float = 0.0
    sampling: float = 0.0
    settle: float = 0.0


PHASES = tuple(each.name for each in fields(PhaseTimes))


class Stopwatch:
    """Reads the phase times of an engine since it was made."""

    def __init__(self, times: PhaseTimes) -> None:
        self._times, self._began = times, astuple(times)

    def lap(self) -> tuple[float, ...]:
        """Seconds by phase."""
        now = astuple(self._times)
        return tuple(b - a for a, b in zip(self._began, now, strict=True))

    @property
    def seconds(self) -> dict[str, float]:
        return dict(zip(PHASES, self.lap(), strict=True))
