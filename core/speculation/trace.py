"""`Trace`: the controller's decisions as JSON lines, one per round (`--spec-trace FILE`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import ConfigError

if TYPE_CHECKING:
    from .policy.sequence_stats import SequenceStats
    from .rounds import Round

_BUFFERED: Final = 256  # rounds
_UNDER_WAY: Final = 8  # rounds that a device may make before the first is read
_N_STEPS: Final = 17  # rows whose expected cost is written
_N_PLACES: Final = 8


class Estimates(NamedTuple):
    """What a controller reckons with when it plans a round."""

    n_rounds: int
    rate: float
    steps: Sequence[float]  # ms, by rows
    spent: float  # of the budget of tries


class Trace:
    def __init__(self, path: str | Path) -> None:
        self._path = path
        try:
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise ConfigError(f"spec-trace: {path} cannot be written: {error.strerror}") from error
        self._lines: list[str] = []
        self._open: list[dict[str, Any]] = []  # rounds whose outcome may still come

    def entry(
        self, estimates: Estimates, decided: Round, sequences: Sequence[SequenceStats]
    ) -> dict[str, Any]:
        """What is known of a round when it is planned. The same object is written later, with what
        became of it."""
        n, steps = len(decided.requests), estimates.steps
        entry = {
            "round": estimates.n_rounds,
            "estimates": {
                "rate": estimates.rate,
                "steps": [round(ms, 5) for ms in steps[n : n + _N_STEPS]],
                "sources": {
                    str(request.sequence): {
                        source: [round(rate, 3) for rate in track.rates()[:_N_PLACES]]
                        for source, track in stats.tracks.items()
                    }
                    for request, stats in zip(decided.requests, sequences, strict=True)
                },
                "spent": round(estimates.spent, 3),
            },
            "plans": [
                {
                    "sequence": request.sequence,
                    "at": len(request.tokens),
                    "network": plan.network,
                    "n_network": plan.n_network,
                    "cheap": request.cheap[plan.cheap].sources[0] if plan.n_cheap else "",
                    "n_cheap": plan.n_cheap,
                    "probe": plan.is_probe,
                }
                for request, plan in zip(decided.requests, decided.plans, strict=True)
            ],
            "draft_ms": {},
            "accepted": {},
        }
        self._open.append(entry)
        if len(self._open) > _UNDER_WAY:
            self.write(self._open.pop(0))
        return entry

    def write(self, entry: dict[str, Any]) -> None:
        self._lines.append(json.dumps(entry, separators=(",", ":")))
        if len(self._lines) >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        if self._lines and not self._file.closed:
            lines, self._lines = self._lines, []
            try:
                self._file.write("\n".join(lines) + "\n")
                self._file.flush()
            except OSError as error:
                raise ConfigError(
                    f"spec-trace: {self._path} cannot be written: {error.strerror}"
                ) from error

    def close(self) -> None:
        for entry in self._open:
            self.write(entry)
        self._open.clear()
        self.flush()
        self._file.close()
