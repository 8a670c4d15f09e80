"""`Text`: what the controller knows of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .estimates import Shared, Track
from .ngram_estimates import n_common
from .plans import Plan, PlanRequest
from .probing import Patience

if TYPE_CHECKING:
    from .interface import Draft

AMID_RUN: Final = "+"  # behind the name of a source: its last draft was right
_FIRST_REACH: Final = 2  # tokens of a model's first drafts; twice as many when all were taken
# The same of n-grams, where a step is quick: with the last token, whole tiles of rows.
_FIRST_CHEAP_REACH: Final = 7
_BOLD_CHEAP_REACH: Final = 31
_LONGEST_CHEAP_REACH: Final = 63
_WRITTEN: Final = 80  # tokens that a round can add, and some


class SequenceStats:
    __slots__ = (
        "agreement",
        "cheap",
        "cost",
        "cut_rate",
        "fresh",
        "hopeful_due",
        "n_rounds",
        "n_tokens",
        "n_trials",
        "patience",
        "plan",
        "plans",
        "possible",
        "reach",
        "rests",
        "runs",
        "shared",
        "tracks",
        "verdict",
        "waits",
    )  # fmt: skip

    def __init__(self, shared: dict[str, Shared], waits: dict[str, int]) -> None:
        """Both are of all texts: what sources have shown, and how long they last had to wait for
        a probe."""
        self.shared, self.waits = shared, waits
        self.tracks: dict[str, Track] = {}
        self.patience: dict[str, Patience] = {}
        self.reach: dict[str, int] = {}  # longest drafts that were earned so far
        self.runs: dict[str, bool] = {}  # cheap sources: all that was seen of the last was right
        self.agreement = 0.6  # how often a model says what a cheap draft says
        self.n_rounds = 0
        self.rests = False  # it is not asked every round, because asking is dear
        self.hopeful_due = 12  # round in which a longer draft may be tried
        self.plan = Plan()
        self.plans = [self.plan]
        self.cost = 1.0  # of a round with this plan, in plain steps
        self.fresh = 0  # rounds that the plan may still be kept
        # Of models alone, as it was thought last, see `Thrift`: the best plan, and the rate that
        # they could reach.
        self.verdict, self.possible = self.plan, 0.0
        self.n_trials = 0
        self.cheap: Sequence[Draft] = ()  # of the last round: what is written now shows their worth
        self.n_tokens = 0  # of the text, then
        self.cut_rate = 0.0  # of the first token that was drafted and not verified

    def meet(self, ask: PlanRequest) -> None:
        """A round begins."""
        self.n_rounds += 1
        if self.cheap:
            self._learn(ask.tokens)
        if ask.cheap:
            self.cheap = [draft for draft in ask.cheap if draft.tokens]
            self.n_tokens = len(ask.tokens)

    def reach_of(self, source: str) -> int:
        return self.reach.get(source, _FIRST_REACH)

    def observe(self, source: str, n: int, n_accepted: int, chances: Sequence[float]) -> None:
        """Of the first `n` tokens of a draft, which a model made, so many were taken."""
        track = self.track(source)
        version, n_hits = track.version, min(n, n_accepted)
        track.observe(0, n_hits, n_hits < n, chances)
        if n_hits == n and self.cut_rate:
            track.impute(n, self.cut_rate)
        if n_hits >= self.reach_of(source):
            self.reach[source] = 2 * self.reach_of(source)
        if track.version != version:
            self.fresh = 0
        if self.plan.is_probe and source in self.patience:
            patience = self.patience[source]
            patience.tried(self.n_rounds, taken=n_hits > 0)
            self.waits[source] = patience.wait

    def track(self, source: str) -> Track:
        track = self.tracks.get(source)
        if track is None:
            shared = self.shared.get(source)
            if shared is None:
                shared = self.shared[source] = Shared()
            track = self.tracks[source] = Track(shared)
        return track

    def _learn(self, tokens: Sequence[int]) -> None:
        """What was written since shows how far the cheap drafts were right, used or not."""
        first = self.n_tokens
        written = list(tokens[first : first + _WRITTEN])
        for draft in self.cheap:
            if n := min(len(written), len(draft.tokens)):
                n_hits = n_common(written, draft.tokens)
                self._move_reach(draft.sources[0], n, n_hits)
                self.cheap_track(draft).observe(0, n_hits, n_hits < n, draft.chances)
                self.runs[draft.sources[0]] = n_hits == n
        self.cheap = ()

    def _move_reach(self, source: str, n: int, n_hits: int) -> None:
        reach = self.cheap_reach(source)
        if n_hits < n:
            reach = max(reach // 2, _FIRST_CHEAP_REACH // 2)
        elif n >= reach:
            reach = min(2 * reach + 1, _LONGEST_CHEAP_REACH)
        self.reach[source] = self.waits[source] = reach

    def cheap_reach(self, source: str) -> int:
        """A text begins a little bolder where drafts were long in the texts before it."""
        reach = self.reach.get(source)
        if reach is None:
            reach = max(_FIRST_CHEAP_REACH, min(self.waits.get(source, 0), _BOLD_CHEAP_REACH))
        return reach

    def cheap_track(self, draft: Draft) -> Track:
        """N-grams are right for long or not at all. So it counts whether the last one was."""
        source = draft.sources[0]
        return self.track(source + AMID_RUN if self.runs.get(source) else source)
