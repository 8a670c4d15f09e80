"""`Controller`: which sources draft and how long, so that the most tokens come out per second.

Per round and text: nothing, the beginning of a cheap draft, a model's draft, or both spliced.
Pure logic: no clock, no random numbers; what it learns comes in through `settle`, `observe_…` and
the texts themselves. docs/controller.md explains the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .choice import Allocation, Option, allocate, best_length, best_rate, gains_of
from .costs import CostModel
from .estimates import Shared
from .plans import NOTHING, AskInfo, Plan, Policy
from .prices import Prices
from .probing import Budget, Patience
from .text import Text

if TYPE_CHECKING:
    from .interface import Draft
    from .trace import Trace

_FORGET: Final = 0.95  # per round: of the speed that was reached
_FIRST_ROUNDS: Final = 24  # of a text: everything is decided anew
_KEPT_FOR: Final = 6  # rounds that a decision is kept after that
_PLAIN_ROUNDS: Final = (0, 10, 30)  # in which it is measured what a step without a draft takes
_DEPTH_EVERY: Final = 6  # rounds between two tries of a longer draft
_INVESTED_FOR: Final = 24  # rounds that a drafter is expected to stay, once it has caught up
_FIRST_REACH: Final = 3  # tokens of a model's first drafts; twice as many when all were taken
_WORTH_A_TRY: Final = 0.02  # tokens that unknown costs must promise
_NO_DRAFTS: Final[Sequence[float]] = ()


class Controller(Policy):
    def __init__(self, costs: CostModel | None = None, trace: Trace | None = None) -> None:
        self.costs = costs if costs is not None else CostModel()
        self._prices = Prices(self.costs)
        self._budget = Budget()
        self._shared: dict[str, Shared] = {}
        self._texts: dict[int, Text] = {}
        self._asks: Sequence[AskInfo] = ()
        self._plans: Sequence[Plan] = ()
        self._tokens = self._time = 1.0  # made lately, and plain steps' worth of time it took
        self._n_rounds = 0
        self._rate = 1.0  # tokens that a millisecond is worth
        self._trace = trace

    def begin(self, sequence: int) -> None:
        self._texts[sequence] = Text(self._shared)

    def end(self, sequence: int) -> None:
        self._texts.pop(sequence, None)

    def observe_step(self, n_rows: int, n_ctx_total: int, ms: float) -> None:
        self.costs.observe_step(n_rows, n_ctx_total, ms)

    def observe_draft(
        self, source: str, n_tokens: int, n_sequences: int, ms: float, n_pending: int = 0
    ) -> None:
        self.costs.observe_draft(source, n_tokens, n_sequences, ms, n_pending)

    # Before drafting

    def plan(self, asks: Sequence[AskInfo]) -> Sequence[Plan]:
        self._asks = asks
        self._n_rounds += 1
        if len(asks) == 1:
            ask = asks[0]
            text = self._texts[ask.sequence]
            if (
                text.fresh > 0
                and not ask.cheap
                and not text.cheap
                and text.plan.n_model <= ask.max_draft
            ):
                text.fresh -= 1
                text.n_rounds += 1
                self._pass(1.0, text.cost)
                self._plans = text.plans
                return text.plans
            text.plan = self._plan_one(ask, text)
            self._plans = text.plans = [text.plan]
        else:
            self._plans = self._plan_many(asks) if asks else []
        return self._plans

    def _pass(self, tokens: float, time: float) -> None:
        self._tokens = _FORGET * self._tokens + tokens
        self._time = _FORGET * self._time + time
        self._budget.total += time

    def _meet(self, ask: AskInfo, text: Text) -> None:
        text.n_rounds += 1
        if text.cheap:
            text.learn(ask.tokens)
        if ask.cheap:
            text.cheap = [draft for draft in ask.cheap if draft.tokens]
            text.n_tokens = len(ask.tokens)

    def _plan_one(self, ask: AskInfo, text: Text) -> Plan:
        prices = self._prices
        self._meet(ask, text)
        prices.read(1, len(ask.tokens))
        steps = prices.steps
        rate = self._tokens / self._time / steps[1]
        gains = {}
        for offer in ask.models:
            n = min(offer.max_draft, ask.max_draft, text.reach.get(offer.source, _FIRST_REACH))
            gains[offer.source] = found = gains_of(text.track(offer.source).places(n))
            rate = max(rate, best_rate(found, steps, prices.drafts(offer.source, 1)))
        self._rate = rate
        plan, value = self._best(ask, text, gains, steps, 1, 1)
        if not plan.n_cheap:
            plan = self._learn_more(ask, text, gains, plan, value)
        return self._keep(ask, text, plan)

    def _keep(self, ask: AskInfo, text: Text, plan: Plan) -> Plan:
        prices = self._prices
        steps, n = prices.steps, max(plan.n_model, plan.n_cheap)
        ms = steps[1 + n]
        if plan.model:
            ms += prices.drafts(plan.model, 1)[plan.n_model]
            if not plan.is_probe:
                text.patience[plan.model].used(text.n_rounds)
        text.cost = ms / steps[1]
        self._pass(1.0, text.cost)
        text.fresh = 0
        if text.n_rounds >= _FIRST_ROUNDS and not plan.is_probe and not plan.n_cheap:
            due = min((text.patience[offer.source].due for offer in ask.models), default=1 << 30)
            text.fresh = max(min(_KEPT_FOR, due - text.n_rounds - 1), 0)
        return plan

    def _best(
        self,
        ask: AskInfo,
        text: Text,
        gains: dict[str, list[float]],
        rows: Sequence[float],
        first: int,
        n_sequences: int,
    ) -> tuple[Plan, float]:
        """The best plan for this text alone, and what it is worth in tokens."""
        plan, best, rate = Plan(), 0.0, self._rate
        of_cheap: list[list[float]] = []
        for i, draft in enumerate(ask.cheap):
            n = min(len(draft.tokens), ask.max_draft, len(rows) - 1 - first)
            found = text.cheap_track(draft).of_tokens(0, draft.chances, n) if n else []
            of_cheap.append(found)
            n, value = best_length(gains_of(found), rows, first, _NO_DRAFTS, rate)
            if value > best:
                plan, best = Plan(cheap=i, n_cheap=n), value
        for offer in ask.models:
            source = offer.source
            drafts = self._prices.drafts(source, n_sequences)
            if n_sequences > 1:  # they share the call
                drafts = [ms / n_sequences for ms in drafts]
            # Paid once, and what follows lasts.
            start = self.costs.catching_up(source, offer.n_pending) * rate / _INVESTED_FOR
            n, value = best_length(gains[source], rows, first, drafts, rate)
            if n and value - start > best:
                plan, best = Plan(model=source, n_model=n), value - start
            for i, cheap in enumerate(of_cheap):
                n, value = self._spliced(text, cheap, gains[source], rows, first, drafts)
                if n and value - start > best:
                    best = value - start
                    plan = Plan(cheap=i, n_cheap=len(cheap), model=source, n_model=n)
        return plan, best

    def _spliced(
        self,
        text: Text,
        cheap: Sequence[float],
        gains: Sequence[float],
        rows: Sequence[float],
        first: int,
        drafts: Sequence[float],
    ) -> tuple[int, float]:
        """How much of a model's draft to put before the tail of a cheap one: a token or two may be
        enough to know whether the cheap one is right."""
        rate, best, n_best = self._rate, 0.0, 0
        reach = 1.0
        own = 0.0
        for n in range(1, min(len(cheap), len(gains))):
            own += gains[n - 1]
            reach *= cheap[n - 1]
            agreeing = reach * text.agreement
            tail = [agreeing * gain for gain in gains_of(cheap[n:])]
            # The tail is verified only if both agree, so its rows count as often as that happens.
            seen = text.agreement
            _, beyond = best_length(
                [gain / seen for gain in tail], rows, first + n, _NO_DRAFTS, rate
            )
            value = own + seen * beyond - rate * (rows[first + n] - rows[first] + drafts[n])
            if value > best:
                best, n_best = value, n
            if n >= 3:
                break
        return n_best, best

    def _learn_more(
        self, ask: AskInfo, text: Text, gains: dict[str, list[float]], plan: Plan, value: float
    ) -> Plan:
        """Now and then something else than the best, if the budget has it: what plain steps take,
        a source that is not used, a longer draft, a length of unknown cost."""
        now, steps = text.n_rounds, self._prices.steps
        if self._lacks_plain(1):
            return Plan(is_probe=True)
        for offer in ask.models:
            patience = text.patience.get(offer.source)
            if patience is None:
                patience = text.patience[offer.source] = Patience(now)
            if offer.source != plan.model and now >= patience.due:
                cost = self.costs.catching_up(offer.source, offer.n_pending)
                spent = self._budget.spent
                if self._affords(gains[offer.source], offer.source, 1, value, steps, cost):
                    patience.loss = self._budget.spent - spent
                    return Plan(model=offer.source, n_model=1, is_probe=True)
                patience.due = now + 4
        is_deep = now >= text.depth_due
        if is_deep:
            text.depth_due = now + _DEPTH_EVERY
        for offer in ask.models:
            if plan.model in ("", offer.source) and not plan.is_probe:
                start = self.costs.catching_up(offer.source, offer.n_pending) / _INVESTED_FOR
                found = hoped = gains[offer.source]
                if is_deep:
                    hoped = gains_of(text.track(offer.source).hoped(len(found)))
                plan = self._try(found, hoped, offer.source, plan, value, start)
        return plan

    def _lacks_plain(self, n: int) -> bool:
        """Without a draft, what a step of `n` rows takes is measured by and by."""
        timings = self.costs.n_timings(n)
        return timings < len(_PLAIN_ROUNDS) and self._n_rounds >= _PLAIN_ROUNDS[timings]

    def _try(
        self,
        gains: Sequence[float],
        gains_hoped: Sequence[float],
        source: str,
        plan: Plan,
        value: float,
        start: float,
    ) -> Plan:
        prices, end = self._prices, 2 + len(gains)
        steps, hoped = prices.steps, prices.hoped
        drafts = prices.drafts(source, 1)
        if gains is gains_hoped and steps[2:end] == hoped[2:end]:
            return plan
        n, promised = best_length(
            gains_hoped, [0.0, steps[1], *hoped[2:end]], 1, drafts, self._rate
        )
        if n == plan.n_model or promised - start * self._rate < value + _WORTH_A_TRY:
            return plan
        likely = [min(a, 1.3 * b) for a, b in zip(steps[:end], hoped[:end], strict=True)]
        if self._affords(gains, source, n, value, likely, start):
            return Plan(model=source, n_model=n, is_probe=True)
        return plan

    def _affords(
        self,
        gains: Sequence[float],
        source: str,
        n: int,
        value: float,
        steps: Sequence[float],
        cost: float,
    ) -> bool:
        ms = steps[1 + n] - steps[1] + self._prices.drafts(source, 1)[n] + cost
        loss = (value - sum(gains[:n])) / self._rate + ms
        loss /= self._prices.steps[1]
        if not self._budget.allows(loss, cost / self._prices.steps[1]):
            return False
        self._budget.spend(loss)
        return True

    def _plan_many(self, asks: Sequence[AskInfo]) -> list[Plan]:
        n = len(asks)
        prices = self._prices
        prices.read(n, sum(len(ask.tokens) for ask in asks))
        steps = prices.steps
        self._rate = max(self._tokens / self._time, 1.0) * n / steps[n]
        if self._lacks_plain(n):
            self._pass(n, n)
            for ask in asks:
                text = self._texts[ask.sequence]
                self._meet(ask, text)
                text.fresh, text.plan = 0, Plan(is_probe=True)
            return [Plan(is_probe=True) for _ in asks]
        row = prices.row(n)
        rows = [row * k for k in range(66)]
        plans: list[Plan] = []
        options = []
        for ask in asks:
            text = self._texts[ask.sequence]
            self._meet(ask, text)
            plan, option = self._option(ask, text, rows, n)
            plans.append(plan)
            options.append(option)
        allocation, possible = self._allocate(options, n)
        self._rate = max(self._rate, possible)
        for ask, plan, length in zip(asks, plans, allocation.lengths, strict=True):
            text = self._texts[ask.sequence]
            text.plan, text.fresh = plan, 0
            self._shorten(text, plan, length)
            self._learn_among(ask, text, plan, row, n)
        self._pass(n, allocation.ms / steps[n] * n)
        return plans

    def _allocate(self, options: Sequence[Option], n: int) -> tuple[Allocation, float]:
        prices = self._prices
        best = allocate(options, prices.steps, prices.drafts, self._rate)
        if prices.steps == prices.hoped:
            return best
        hoped = [*prices.steps[: n + 1], *prices.hoped[n + 1 :]]
        other, _ = allocate(options, hoped, prices.drafts, self._rate)
        rate = max(self._rate, best[1])
        value = best[0].tokens - rate * best[0].ms
        if other.tokens - rate * other.ms < value + _WORTH_A_TRY * n:
            return best
        n_rows = n + sum(other.lengths)
        ms = (other.ms + other.ms - hoped[n_rows] + prices.steps[n_rows]) / 2
        loss = (value - other.tokens + rate * ms) / rate / prices.steps[n] * n
        if not self._budget.allows(loss):
            return best
        self._budget.spend(loss)
        return other, best[1]

    def _learn_among(self, ask: AskInfo, text: Text, plan: Plan, row: float, n: int) -> None:
        """A probe for one of many."""
        for offer in ask.models:
            patience = text.patience.get(offer.source)
            if patience is None:
                patience = text.patience[offer.source] = Patience(text.n_rounds)
            if plan.model == offer.source:
                patience.used(text.n_rounds)
            elif not plan.model and not plan.n_cheap and text.n_rounds >= patience.due:
                ms = row + self._prices.drafts(offer.source, n)[1] / n
                once = self.costs.catching_up(offer.source, offer.n_pending)
                loss = once + ms - text.track(offer.source).places(1)[0] / self._rate
                loss *= n / self._prices.steps[n]
                if self._budget.allows(loss, once * n / self._prices.steps[n]):
                    self._budget.spend(loss)
                    patience.loss = loss
                    plan.model, plan.n_model, plan.is_probe = offer.source, 1, True
                else:
                    patience.due = text.n_rounds + 4

    def _option(
        self, ask: AskInfo, text: Text, rows: Sequence[float], n_sequences: int
    ) -> tuple[Plan, Option]:
        gains = {}
        for offer in ask.models:
            n = min(offer.max_draft, ask.max_draft, text.reach.get(offer.source, _FIRST_REACH))
            gains[offer.source] = gains_of(text.track(offer.source).places(n))
        plan, value = self._best(ask, text, gains, rows, 0, n_sequences)
        if plan.model:
            return plan, Option(gains[plan.model], plan.model)
        if plan.n_cheap:
            draft = ask.cheap[plan.cheap]
            n = min(len(draft.tokens), ask.max_draft)
            track = text.cheap_track(draft)
            return plan, Option(gains_of(track.of_tokens(0, draft.chances, n)))
        return plan, Option(())

    def _shorten(self, text: Text, plan: Plan, length: int) -> None:
        if plan.model:
            plan.n_model = length
            if not length:
                plan.model, plan.cheap, plan.n_cheap = "", NOTHING, 0
        elif plan.n_cheap:
            plan.n_cheap = length

    # After drafting

    def cut(self, drafts: Sequence[Draft]) -> Sequence[int]:
        return [len(draft.tokens) for draft in drafts]

    def settle(self, sequence: int, draft: Draft, n_accepted: int) -> None:
        self._tokens += n_accepted
        text = self._texts.get(sequence)
        if text is None or not draft.tokens:
            return
        source = draft.sources[0]
        if source != draft.sources[-1] or not text.cheap:
            pass
        n = len(draft.tokens)
        if text.plan.model:
            track = text.track(source)
            version = track.version
            track.observe(0, n_accepted, n_accepted < n, draft.chances)
            reach = text.reach.get(source, _FIRST_REACH)
            if n_accepted >= reach:
                text.reach[source] = 2 * reach
            if track.version != version:
                text.fresh = 0
            if text.plan.is_probe and source in text.patience:
                text.patience[source].tried(text.n_rounds, taken=n_accepted > 0)
