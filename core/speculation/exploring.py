"""`Explorer`: now and then something else than the best, to learn what it is worth; as much of it
as the budget has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .draft_length import Allocation, Option, allocate, best_length, gains_of
from .planner import INVESTED_FOR, Gains, Planner
from .plans import Plan, PlanRequest
from .probing import Budget, Patience
from .sequence_stats import SequenceStats

_PLAIN_ROUNDS: Final = (0, 10, 30)  # in which it is measured what a step without a draft takes
_CLOSE: Final = 1.2  # times as fast as plain: a plain round now and then costs next to nothing
_OLD: Final = 30  # steps
_HOPEFUL_EVERY: Final = 6  # rounds between two looks at places that were hardly seen
_WORTH_A_TRY: Final = 0.02  # tokens that the unknown must promise
_LIKELY: Final = 1.3  # times what is hoped: what a doubtful cost is reckoned to be
_AGAIN: Final = 32  # rounds after which a probe that was too expensive is considered again


class Explorer:
    def __init__(self, chooser: Planner) -> None:
        self._chooser = chooser
        self.budget = Budget()

    def lacks_plain(self, n_sequences: int, now: int) -> bool:
        """A step without any draft is to be measured."""
        timings = self._chooser.costs.n_timings(n_sequences)
        return timings < len(_PLAIN_ROUNDS) and now >= _PLAIN_ROUNDS[timings]

    def lacks_news_of_plain(self, n_sequences: int, gain: float) -> bool:
        """The same of one that was measured long ago, if so little depends on it: speculation
        that gains less than the machine's moods may well lose. `gain`: the believed rate with
        drafts, in that of plain rounds."""
        lacks = gain < _CLOSE and self._chooser.costs.age(n_sequences) > _OLD
        if lacks:
            self._chooser.prices.expire()  # what it takes counts as soon as it is known
        return lacks

    def instead(
        self, ask: PlanRequest, text: SequenceStats, gains: Gains, plan: Plan, value: float
    ) -> Plan:
        """For one text alone: the plan, or a source that is not used, or another length whose
        cost or acceptance is hardly known."""
        for offer in ask.models:
            patience = self._patience(text, offer.source)
            if offer.source == plan.model or text.n_rounds < patience.due:
                continue
            once = self._chooser.prices.catching_up(offer.source, offer.n_to_try)
            if self._affords(gains[offer.source], offer.source, 1, value, once=once):
                patience.loss = self.budget.last
                return Plan(model=offer.source, n_model=1, is_probe=True, is_trial=True)
            patience.due = text.n_rounds + _AGAIN
        is_hopeful = text.n_rounds >= text.hopeful_due
        if is_hopeful:
            text.hopeful_due = text.n_rounds + _HOPEFUL_EVERY
        for offer in ask.models:
            if plan.model in ("", offer.source) and not plan.is_probe:
                found = hoped = gains[offer.source]
                if is_hopeful:
                    hoped = gains_of(text.track(offer.source).hoped(len(found)))
                once = self._chooser.prices.catching_up(offer.source, offer.n_pending)
                n = self._other_length(found, hoped, offer.source, plan.n_model, value, once)
                if n != plan.n_model:
                    plan = Plan(model=offer.source, n_model=n, is_probe=True)
        return plan

    def _other_length(
        self,
        gains: Sequence[float],
        hoped: Sequence[float],
        source: str,
        n_planned: int,
        value: float,
        once: float,
    ) -> int:
        prices, rate, end = self._chooser.prices, self._chooser.rate, 2 + len(gains)
        steps, least = prices.steps, prices.hoped
        if gains is hoped and steps[2:end] == least[2:end]:
            return n_planned
        rows = [0.0, steps[1], *least[2:end]]
        n, promised = best_length(hoped, rows, 1, prices.drafts(source, 1), rate)
        if n == n_planned or promised - once * rate / INVESTED_FOR < value + _WORTH_A_TRY:
            return n_planned
        ms = min(steps[1 + n], _LIKELY * least[1 + n])
        affords = self._affords(gains, source, n, value, step=ms, once=once / INVESTED_FOR)
        return n if affords else n_planned

    def _affords(
        self,
        gains: Sequence[float],
        source: str,
        n: int,
        value: float,
        *,
        step: float | None = None,
        once: float = 0.0,
    ) -> bool:
        prices = self._chooser.prices
        plain = prices.steps[1]
        ms = (prices.steps[1 + n] if step is None else step) - plain + prices.drafts(source, 1)[n]
        loss = (value - sum(gains[:n])) / self._chooser.rate + ms
        return self.budget.spend((loss + once) / plain, once / plain)

    # Among many

    def probe_among(
        self, ask: PlanRequest, text: SequenceStats, plan: Plan, n: int, n_rows: int
    ) -> bool:
        """One of `n` texts that is to have no draft may have a token of a model, beside so many
        rows; whether it has."""
        prices = self._chooser.prices
        for offer in ask.models:
            patience = self._patience(text, offer.source)
            if plan.model == offer.source:
                patience.used(text.n_rounds)
            elif not plan.model and not plan.n_cheap and text.n_rounds >= patience.due:
                once = self._chooser.prices.catching_up(offer.source, offer.n_to_try)
                row = min(prices.steps[n_rows + 1], _LIKELY * prices.hoped[n_rows + 1])
                row = max(row - prices.steps[n_rows], prices.row(n))
                ms = row + prices.drafts(offer.source, n)[1] / n + once
                loss = ms - text.track(offer.source).places(1)[0] / self._chooser.rate
                scale = n / prices.steps[n]
                if self.budget.spend(loss * scale, once * scale, n):
                    patience.loss = self.budget.last
                    plan.model, plan.n_model = offer.source, 1
                    plan.is_probe = plan.is_trial = True
                    return True
                patience.due = text.n_rounds + _AGAIN
        return False

    def allocate(self, options: Sequence[Option]) -> tuple[Allocation, float]:
        """Lengths for many texts, and the rate that is possible; of lengths whose cost is hardly
        known, it may be others than the best."""
        prices, n = self._chooser.prices, len(options)
        best, possible = allocate(options, prices.steps, prices.drafts, self._chooser.rate)
        if prices.steps == prices.hoped:
            return best, possible
        rate = max(self._chooser.rate, possible)
        rows = [*prices.steps[: n + 1], *prices.hoped[n + 1 :]]
        value = best.tokens - rate * best.ms
        # The best that is hoped for may be far away, and too dear to try: then something nearer.
        for most in (len(rows) - 1, 4 * n, 2 * n):
            other, _ = allocate(options, rows[: most + 1], prices.drafts, self._chooser.rate)
            if other.tokens - rate * other.ms < value + _WORTH_A_TRY * n:
                break
            n_rows = n + sum(other.lengths)
            ms = other.ms + (prices.steps[n_rows] - rows[n_rows]) / 2
            loss = (value - other.tokens + rate * ms) / rate / prices.steps[n] * n
            if self.budget.spend(loss):
                return other, possible
        return best, possible

    def _patience(self, text: SequenceStats, source: str) -> Patience:
        patience = text.patience.get(source)
        if patience is None:
            wait = text.waits.get(source, 0) // 2  # as long as it had disappointed other texts
            patience = text.patience[source] = Patience(text.n_rounds, wait)
        return patience
