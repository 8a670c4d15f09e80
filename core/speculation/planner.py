"""`Chooser`: the best plan for a text, from what is believed of its sources and of the costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from .costs import CostModel
from .draft_length import Option, best_length, gains_of
from .plans import Plan, PlanRequest
from .prices import Prices
from .sequence_stats import SequenceStats

if TYPE_CHECKING:
    from .interface import Draft

INVESTED_FOR: Final = 24  # rounds that a drafter is expected to stay, once it has caught up
_LONGEST_CHECK: Final = 3  # model tokens before the tail of a cheap draft
_HARDLY: Final = 0.05  # the chance of a token: later ones pay for nothing
ROUND: Final = 0.25  # plain steps: what a quick round with a draft takes beside its step
_NO_DRAFTS: Final[Sequence[float]] = ()

Gains = dict[str, list[float]]  # by model: what each token of its draft is expected to gain


class Rows(NamedTuple):
    """What rows cost one text: `ms[first + n]` with n of them."""

    ms: Sequence[float]
    first: int
    n_sequences: int  # that share a drafter's call


class Planner:
    def __init__(self, costs: CostModel) -> None:
        self.costs, self.prices = costs, Prices(costs)
        self.rate = 1.0  # tokens that a millisecond is worth

    def gains(self, ask: PlanRequest, text: SequenceStats) -> Gains:
        found = {}
        for offer in ask.models:
            n = min(offer.max_draft, ask.max_draft, text.reach_of(offer.source))
            found[offer.source] = gains_of(text.track(offer.source).places(n))
        return found

    def best(
        self, ask: PlanRequest, text: SequenceStats, gains: Gains, rows: Rows
    ) -> tuple[Plan, float]:
        """The best plan for this text alone, and what it is worth in tokens."""
        plan, best = Plan(), 0.0
        of_cheap: list[list[float]] = []
        for i, draft in enumerate(ask.cheap):
            n = min(len(draft.tokens), ask.max_draft, len(rows.ms) - 1 - rows.first)
            rates = text.cheap_track(draft).of_tokens(0, draft.chances, n) if n else []
            of_cheap.append(rates)
            n, value = best_length(gains_of(rates), rows.ms, rows.first, _NO_DRAFTS, self.rate)
            if value > best:
                plan, best = Plan(cheap=i, n_cheap=n), value
        for offer in ask.models:
            source, drafts = offer.source, self._drafts(offer.source, rows)
            # Paid once, and what follows lasts.
            start = self.prices.catching_up(source, offer.n_pending) * self.rate / INVESTED_FOR
            n, value = best_length(gains[source], rows.ms, rows.first, drafts, self.rate)
            if n and value - start > best:
                plan, best = Plan(model=source, n_model=n), value - start
            for i, rates in enumerate(of_cheap):
                n, value = self._spliced(text, rates, gains[source], rows, drafts)
                if n and value - start > best:
                    plan = Plan(cheap=i, n_cheap=len(rates), model=source, n_model=n)
                    best = value - start
        if plan.model and not plan.n_cheap:
            drafts = self._drafts(plan.model, rows)
            row = self.prices.row(rows.n_sequences)
            plan.stop_below = text.track(plan.model).least_chance(
                self.rate * (row + drafts[2] - drafts[1])
            )
        return plan, best

    def cheap(
        self, ask: PlanRequest, text: SequenceStats, draft: Draft, least: float
    ) -> tuple[int, float]:
        """How much of an n-gram draft to verify, for one text alone, and the tokens per ms of
        that; (0, `least`) if no part of it reaches more.

        Not what other drafts have reached lately, but what this one can: the tokens of a run have
        to be written in any case, and while it lasts, there is another draft after this one."""
        steps, track = self.prices.steps, text.cheap_track(draft)
        n = min(len(draft.tokens), ask.max_draft, text.cheap_reach(draft.sources[0]))
        chances = draft.chances if track.trusts_chances() else ()
        places = () if chances else track.places(n)
        n_best, best, tokens, gain, round_ms = 0, least, 1.0, 1.0, ROUND * steps[1]
        chance = own = -1.0
        for i in range(n):
            if places:
                own = places[i]
            elif chances[i] != chance:
                chance = chances[i]
                own = track.of_chance(chance)
            gain *= own
            if gain < _HARDLY:
                break
            tokens += gain
            rate = tokens / (steps[2 + i] + round_ms)
            if rate > best:
                n_best, best = i + 1, rate
        return n_best, best

    def option(self, ask: PlanRequest, text: SequenceStats, plan: Plan, gains: Gains) -> Option:
        """What could be drafted by this plan, if others leave room for it."""
        if plan.model:
            return Option(gains[plan.model], plan.model)
        if plan.n_cheap:
            draft = ask.cheap[plan.cheap]
            n = min(len(draft.tokens), ask.max_draft)
            return Option(gains_of(text.cheap_track(draft).of_tokens(0, draft.chances, n)))
        return Option(())

    def _drafts(self, source: str, rows: Rows) -> Sequence[float]:
        drafts = self.prices.drafts(source, rows.n_sequences)
        if rows.n_sequences == 1:
            return drafts
        return [ms / rows.n_sequences for ms in drafts]

    def _spliced(
        self,
        text: SequenceStats,
        cheap: Sequence[float],
        gains: Sequence[float],
        rows: Rows,
        drafts: Sequence[float],
    ) -> tuple[int, float]:
        """How much of a model's draft to put before the tail of a cheap one: a token or two may be
        enough to know whether the cheap one is right."""
        n_best, best, reach, own = 0, 0.0, 1.0, 0.0
        likely = text.agreement
        for n in range(1, min(len(cheap), len(gains), _LONGEST_CHECK + 1)):
            own += gains[n - 1]
            reach *= cheap[n - 1]
            # The tail is verified only if both agree: so often its rows count.
            tail = [reach * gain for gain in gains_of(cheap[n:])]
            _, beyond = best_length(tail, rows.ms, rows.first + n, _NO_DRAFTS, self.rate)
            ms = rows.ms[rows.first + n] - rows.ms[rows.first] + drafts[n]
            value = own + likely * beyond - self.rate * ms
            if value > best:
                n_best, best = n, value
        return n_best, best
