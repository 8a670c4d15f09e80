"""Counters since the start of the server, for /metrics. All but `refused` are written by the
engine's thread alone."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from msgspec import Struct, field

from ..generation import SourceStats, Stats

_WIDE: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_COUNTS: Final = tuple(n * 10**k for k in range(6) for n in (1, 2, 5))  # of tokens
_NARROW: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float, n: int = 1) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += n
        self.total += n * seconds

    @property
    def n(self) -> int:
        return sum(self.counts)


class Totals(Struct):
    prompt_n: int = 0  # prompt tokens that were run, without `cached_n`
    cached_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    longest: int = 0  # sequence, in tokens
    steps: int = 0
    busy: int = 0  # running sequences, summed over steps
    failed_steps: int = 0
    drafter_failures: int = 0
    drafts: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    accept_per_pos: list[int] = field(default_factory=list)
    by_source: dict[str, SourceStats] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)  # sequences, by stop reason
    refused: int = 0  # requests, because the queue was full
    first_token: Histogram = field(default_factory=lambda: Histogram(_WIDE))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(_NARROW))
    whole: Histogram = field(default_factory=lambda: Histogram(_WIDE))
    mean_between: Histogram = field(default_factory=lambda: Histogram(_NARROW))  # of a text
    reading: Histogram = field(default_factory=lambda: Histogram(_WIDE))  # of a prompt
    writing: Histogram = field(default_factory=lambda: Histogram(_WIDE))
    working: Histogram = field(default_factory=lambda: Histogram(_WIDE))  # both
    prompt_lengths: Histogram = field(default_factory=lambda: Histogram(_COUNTS))
    text_lengths: Histogram = field(default_factory=lambda: Histogram(_COUNTS))
    queued: Histogram = field(default_factory=lambda: Histogram(_WIDE))

    def add_read(self, n_tokens: int, ms: float) -> None:
        """Adds tokens of a prompt, or of a text that is embedded."""
        self.prompt_n += n_tokens
        self.prompt_ms += ms

    def add(self, stats: Stats, n_tokens: int, reason: str) -> None:
        """Adds a sequence that has ended."""
        self.add_read(stats.prompt_n - stats.cached_n if stats.steps else 0, stats.prompt_ms)
        self.cached_n += stats.cached_n
        self.predicted_n += stats.predicted_n
        self.predicted_ms += stats.predicted_ms
        self.longest = max(self.longest, n_tokens)
        self.drafts += stats.drafts
        self.draft_n += stats.draft_n
        self.draft_n_accepted += stats.draft_n_accepted
        missing = len(stats.accept_per_pos) - len(self.accept_per_pos)
        self.accept_per_pos += [0] * missing
        for i, n in enumerate(stats.accept_per_pos):
            self.accept_per_pos[i] += n
        for name, source in stats.by_source.items():
            total = self.by_source.setdefault(name, SourceStats())
            total.drafted += source.drafted
            total.accepted += source.accepted
            total.ms += source.ms
        self.ended[reason] = self.ended.get(reason, 0) + 1
        self._add_to_histograms(stats)

    def _add_to_histograms(self, stats: Stats) -> None:
        self.prompt_lengths.add(stats.prompt_n)
        self.text_lengths.add(stats.predicted_n)
        self.reading.add(stats.prompt_ms / 1000)
        self.writing.add(stats.predicted_ms / 1000)
        self.working.add((stats.prompt_ms + stats.predicted_ms) / 1000)
        if stats.predicted_n > 1:
            self.mean_between.add(stats.predicted_ms / 1000 / (stats.predicted_n - 1))

    def speculation(self) -> dict[str, Any]:
        """Figures of all drafts; empty if there were none. A drafter's are accepted/drafted."""
        if not self.drafts:
            return {}
        sources = {name: f"{each.accepted}/{each.drafted}" for name, each in self.by_source.items()}
        return {
            "drafts": self.drafts,
            "drafted": self.draft_n,
            "accepted": self.draft_n_accepted,
            "acceptance": round(self.draft_n_accepted / max(self.draft_n, 1), 3),
            **sources,
        }

    @property
    def mean_s(self) -> float:
        """Mean time from submission to the end of a sequence; 1 if none has ended."""
        return self.whole.total / self.whole.n if self.whole.n else 1.0
