"""`Text`: what the controller knows of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .estimates import Shared, Track
from .plans import Plan
from .probing import Patience

if TYPE_CHECKING:
    from .interface import Draft

AMID_RUN: Final = "+"


class Text:
    __slots__ = (
        "agreement", "cheap", "cost", "cut_rate", "depth_due", "fresh", "n_rounds", "n_tokens",
        "patience", "plan", "plans", "reach", "runs", "shared", "tracks",
    )  # fmt: skip

    def __init__(self, shared: dict[str, Shared]) -> None:
        self.shared = shared
        self.tracks: dict[str, Track] = {}
        self.patience: dict[str, Patience] = {}
        self.runs: dict[str, bool] = {}  # cheap sources: all that was seen of the last was right
        self.n_rounds = 0
        self.plan = Plan()
        self.plans = [self.plan]
        self.cost = 1.0  # of a round with this plan, in plain steps
        self.fresh = 0  # rounds that the plan may still be kept
        self.cheap: Sequence[
            Draft
        ] = ()  # of the last round: the text will show what they were worth
        self.n_tokens = 0  # of the text, then
        self.cut_rate = 0.0  # of the first token that was drafted and not verified
        self.depth_due = 12  # round in which a longer draft may be tried
        self.reach: dict[str, int] = {}  # longest drafts of models that were earned so far
        self.agreement = 0.6  # how often a model's token is the cheap one's, where there is one

    def track(self, source: str) -> Track:
        track = self.tracks.get(source)
        if track is None:
            shared = self.shared.get(source)
            if shared is None:
                shared = self.shared[source] = Shared()
            track = self.tracks[source] = Track(shared)
        return track

    def learn(self, tokens: Sequence[int]) -> None:
        """What was written since shows how far the cheap drafts were right, used or not."""
        first = self.n_tokens
        written = tokens[first : first + 80]
        for draft in self.cheap:
            n = min(len(written), len(draft.tokens))
            n_hits = 0
            while n_hits < n and draft.tokens[n_hits] == written[n_hits]:
                n_hits += 1
            if n:
                self.cheap_track(draft).observe(0, n_hits, n_hits < n, draft.chances)
                self.runs[draft.sources[0]] = n_hits == n
        self.cheap = ()

    def cheap_track(self, draft: Draft) -> Track:
        """N-grams are right for long or not at all. So it counts whether the last one was."""
        source = draft.sources[0]
        return self.track(source + AMID_RUN if self.runs.get(source) else source)
