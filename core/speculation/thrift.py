"""`Thrift`: decisions where a step takes no longer than a few decisions do.

What was thought of models is kept for long, n-grams are weighed against it in one pass over their
draft, and a model that does not pay sleeps through texts: it reads nothing, and is asked nothing,
until its turn to be tried comes again.
"""

from __future__ import annotations

from typing import Final

from .draft_length import best_rate, gains_of
from .exploring import Explorer
from .planner import ROUND, Planner, Rows
from .plans import Plan, PlanRequest
from .sequence_stats import SequenceStats

_KEPT_FOR: Final = 12  # questions for which a model's worth is not thought over, while it drafts
_IDLE_FOR: Final = 48  # the same of one that does not
_WELL_KNOWN: Final = 8.0  # drafts that it takes for that
_TRIED: Final = 2  # drafts before that is done, after a sleep
_TRIED_TOKENS: Final = 3
_FIRST_WAIT: Final = 150.0  # plain steps before the first trial
_DEAR_WAIT: Final = 4000.0  # the same where not even a good head would gain much
_GOOD: Final = gains_of([0.85] * 8)
_MUCH: Final = 1.05  # times the plain rate
_WAIT: Final = 1000.0  # that a model sleeps after one; twice as long whenever it disappoints
_LONGEST_WAIT: Final = 8000.0
_NOTHING: Final = Plan()


class Sleep:
    """Of one model, through all texts. Times are plain steps, of all texts."""

    __slots__ = ("is_new", "until", "wait")

    def __init__(self) -> None:
        self.until, self.wait = _FIRST_WAIT, _WAIT
        self.is_new = True


class Thrift:
    def __init__(self, chooser: Planner, explorer: Explorer) -> None:
        self._chooser, self._explorer = chooser, explorer
        self._sleeps: dict[str, Sleep] = {}

    def is_wanted(self, source: str) -> bool:
        sleep, now = self._sleep(source), self._explorer.budget.total
        if now < sleep.until:
            return False
        if sleep.is_new:
            sleep.is_new = False
            if not self._promises(source):
                sleep.until = now + _DEAR_WAIT
                return False
        return True

    def _promises(self, source: str) -> bool:
        """Whether a trial may well end in a gain, by what rounds of the model take."""
        prices = self._chooser.prices
        steps, drafts = prices.steps, prices.drafts(source, 1)
        rounds = [ms + ROUND * steps[1] for ms in steps]
        rounds[1] = steps[1]
        return best_rate(_GOOD, rounds, drafts) > _MUCH / steps[1]

    def plan(self, ask: PlanRequest, text: SequenceStats) -> Plan:
        chooser = self._chooser
        plain = 1.0 / chooser.prices.steps[1]
        if not ask.models:
            text.verdict = _NOTHING
        elif text.fresh > 0:
            text.fresh -= 1
        else:
            chooser.rate = plain
            self._judge(ask, text)
        plan = text.verdict
        best = max(plain, text.possible) if plan.model else plain
        chooser.rate = best
        for i, draft in enumerate(ask.cheap):
            if draft.tokens:
                n, rate = chooser.cheap(ask, text, draft, best)
                if n:
                    plan, best = Plan(cheap=i, n_cheap=n), rate
        return plan

    def _judge(self, ask: PlanRequest, text: SequenceStats) -> None:
        """What models are worth in this text, for a while."""
        chooser = self._chooser
        prices, text.possible = chooser.prices, 0.0
        for offer in ask.models:
            if text.n_trials < _TRIED:
                text.n_trials += 1
                text.fresh = 0
                text.verdict = Plan(model=offer.source, is_probe=True)
                text.verdict.n_model = min(_TRIED_TOKENS, offer.max_draft, ask.max_draft)
                return
        gains = chooser.gains(ask, text)
        for source, found in gains.items():
            possible = best_rate(found, prices.steps, prices.drafts(source, 1))
            text.possible = max(text.possible, possible)
        chooser.rate = max(chooser.rate, text.possible)
        alone = ask._replace(cheap=())
        plan, value = chooser.best(alone, text, gains, Rows(prices.steps, 1, 1))
        if plan.model:
            plan = self._explorer.instead(alone, text, gains, plan, value)
        text.verdict, text.fresh = plan, self._kept_for(text, plan)
        self.judged({offer.source for offer in ask.models}, {plan.model})

    def judged(self, offered: set[str], taken: set[str]) -> None:
        """Models that are awake, and those that are to draft: the others sleep."""
        for source in offered:
            sleep = self._sleep(source)
            if source in taken:
                sleep.until, sleep.wait = 0.0, _WAIT
            else:
                sleep.until = self._explorer.budget.total + sleep.wait
                sleep.wait = min(2 * sleep.wait, _LONGEST_WAIT)

    def _kept_for(self, text: SequenceStats, plan: Plan) -> int:
        if not plan.model:
            return _IDLE_FOR
        is_known = text.track(plan.model).seen(0) >= _WELL_KNOWN
        return _KEPT_FOR if is_known and not plan.is_probe else 0

    def _sleep(self, source: str) -> Sleep:
        sleep = self._sleeps.get(source)
        if sleep is None:
            sleep = self._sleeps[source] = Sleep()
        return sleep
