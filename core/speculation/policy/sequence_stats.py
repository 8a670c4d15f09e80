"""What was measured of one sequence, and when a network is probed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..drafters.ngram_chances import n_common
from ..rounds import DraftPlan, PlanRequest
from .acceptance_estimates import AcceptanceCounts, Track

if TYPE_CHECKING:
    from ..draft import Draft

SOON: Final = 4  # rounds until the first probe of a source, and after it was of use
_LATEST: Final = 200  # rounds between two probes
_AFFORDABLE: Final = 0.004  # plain steps per round that repeated probes of a source may cost
_FIRST_REACH: Final = 2  # tokens of a network's first drafts; twice as many when all were accepted
_AFTER_HIT: Final = "+"  # behind a source's name: an n-gram draft after one that was right
_AGREEMENT: Final = 0.15  # the weight of one draft in `agreement`
_WRITTEN: Final = 80  # tokens that a round can add, and some


class Backoff:
    """When a network that is not in use is probed again: later and later, until it helps."""

    def __init__(self, now: int, wait: int) -> None:
        self.wait = max(wait, SOON)
        self.due = now + self.wait
        self.loss = 0.0  # plain steps that the last probe cost

    def probed(self, now: int, *, was_accepted: bool) -> None:
        latest = min(max(2 * SOON, int(self.loss / _AFFORDABLE)), _LATEST)
        self.wait = 1 if was_accepted else min(2 * max(self.wait, SOON // 2), latest)
        self.due = now + self.wait

    def used(self, now: int) -> None:
        self.wait = SOON
        self.due = now + SOON


class SequenceStats:
    def __init__(self, shared: dict[str, AcceptanceCounts], waits: dict[str, int]) -> None:
        """Both are of all sequences: what sources have shown, and the latest waits of probes."""
        self._shared, self._waits = shared, waits
        self.tracks: dict[str, Track] = {}
        self.backoffs: dict[str, Backoff] = {}
        self._reach: dict[str, int] = {}
        self._was_right: dict[str, bool] = {}  # the last draft of an n-gram source
        self.agreement = 0.6  # how often a network's draft begins like an n-gram draft
        self.n_rounds = 0
        self._cheap: Sequence[Draft] = ()  # of the last round
        self._n_tokens = 0  # of the sequence, then

    def meet(self, request: PlanRequest) -> None:
        """A round begins: tokens written since the last one show what n-gram drafts were worth,
        whether they were used or not."""
        self.n_rounds += 1
        written = list(request.tokens[self._n_tokens : self._n_tokens + _WRITTEN])
        for draft in self._cheap:
            if n := min(len(written), len(draft.tokens)):
                n_right = n_common(written, draft.tokens)
                self.cheap_track(draft).observe(n_right, n_right < n, draft.chances)
                self._was_right[draft.sources[0]] = n_right == n
        self._cheap = [draft for draft in request.cheap if draft.tokens]
        self._n_tokens = len(request.tokens)

    @property
    def has_cheap(self) -> bool:
        """Whether there is an n-gram draft in this round."""
        return bool(self._cheap)

    def track(self, source: str) -> Track:
        track = self.tracks.get(source)
        if track is None:
            track = self.tracks[source] = Track(self._shared.setdefault(source, AcceptanceCounts()))
        return track

    def cheap_track(self, draft: Draft) -> Track:
        """N-gram drafts in the middle of a repetition are accepted more often than first ones."""
        source = draft.sources[0] if draft.sources else ""
        return self.track(source + _AFTER_HIT if self._was_right.get(source) else source)

    def reach_of(self, source: str) -> int:
        """The longest draft that the source may make so far."""
        return self._reach.get(source, _FIRST_REACH)

    def backoff(self, source: str) -> Backoff:
        found = self.backoffs.get(source)
        if found is None:
            wait = self._waits.get(source, 0) // 2  # as in other sequences
            found = self.backoffs[source] = Backoff(self.n_rounds, wait)
        return found

    def until_probe(self, source: str) -> int:
        """Rounds before the one in which the source is probed next."""
        return self.backoff(source).due - self.n_rounds - 1

    def observe(self, plan: DraftPlan, draft: Draft, n_accepted: int) -> None:
        """Some tokens of a draft were accepted that begins with those of the plan's network."""
        source, track = plan.network, self.track(plan.network)
        n = draft.sources.count(source)
        n_right = min(n, n_accepted)
        track.observe(n_right, n_right < n, draft.chances)
        if plan.n_cheap:
            self.agreement += _AGREEMENT * ((len(draft.tokens) > n) - self.agreement)
        if n_right >= self.reach_of(source):
            self._reach[source] = 2 * self.reach_of(source)
        if plan.is_probe and source in self.backoffs:
            backoff = self.backoffs[source]
            backoff.probed(self.n_rounds, was_accepted=n_right > 0)
            self._waits[source] = backoff.wait
