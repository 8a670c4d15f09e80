"""`Controller`: which sources draft and how long, so that the most tokens come out per second.

Per round and text: nothing, the beginning of a cheap draft, a model's draft, or both spliced.
Pure logic: no clock, no random numbers; what it learns comes in through `settle`, `observe_…` and
the texts themselves. docs/controller.md explains the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from .costs import CostModel
from .draft_length import Option, allocate, best_length, best_rate, gains_of
from .estimates import Shared
from .exploring import Explorer
from .planner import Planner, Rows
from .plans import NOTHING, Late, Plan, PlanRequest, Policy
from .probing import SOON
from .sequence_stats import SequenceStats
from .thrift import Thrift

if TYPE_CHECKING:
    from pathlib import Path

    from .interface import Draft, DraftRequest
    from .trace import Trace

_FORGET: Final = 0.95  # per round: of the speed that was reached
_FIRST_ROUNDS: Final = 24  # of a text: everything is decided anew
_KEPT_FOR: Final = 8  # rounds that a decision is kept after that
_IDLE_FOR: Final = 64  # the same, of the decision to draft nothing
_LONGEST: Final = 64
_WAKES_BEFORE: Final = SOON  # rounds: a model that is to be tried; so one in use never naps
_AGREEMENT: Final = 0.15  # how much one draft says of how often sources agree
_TRACED: Final = 17  # rows whose believed cost is in the trace
_TRACED_PLACES: Final = 8


class Controller(Policy):
    def __init__(
        self,
        costs: CostModel | None = None,
        trace: Trace | None = None,
        costs_file: Path | None = None,
    ) -> None:
        """`costs_file`: where what was learned of costs is written at the end."""
        self._costs_file = costs_file
        self.costs = costs if costs is not None else CostModel()
        self.repeats = self.costs.is_frozen
        self._chooser = Planner(self.costs)
        self._explorer = Explorer(self._chooser)
        self._thrift = Thrift(self._chooser, self._explorer)
        self._shared: dict[str, Shared] = {}
        self._waits: dict[str, int] = {}
        self._texts: dict[int, SequenceStats] = {}
        self._asks: Sequence[PlanRequest] = ()
        self._plans: Sequence[Plan] = ()
        self._n_rounds = 0
        self._tokens = self._time = 1.0  # made lately, and plain steps' worth of time it took
        self._trace = trace
        self._entry: dict[str, Any] | None = None  # of the trace, for the round that is going on

    def begin(self, sequence: int) -> None:
        self._texts[sequence] = SequenceStats(self._shared, self._waits)

    def quick_ms(self) -> float:
        prices = self._chooser.prices
        return prices.steps[1] if prices.are_quick else 0.0

    def passed_by(self, n_sequences: int, n_ctx_total: int) -> None:
        self._chooser.prices.read(n_sequences, n_ctx_total)

    def wants(self, sequence: int, source: str) -> bool:
        return not self._chooser.prices.are_quick or self._thrift.is_wanted(source)

    def may_nap(self, sequence: int, source: str) -> bool:
        text = self._texts.get(sequence)
        if text is None or source not in text.patience or self._chooser.prices.are_quick:
            return False
        return text.patience[source].due > text.n_rounds + _WAKES_BEFORE

    def end(self, sequence: int) -> None:
        self._texts.pop(sequence, None)

    def observe_step(self, n_rows: int, n_ctx_total: int, ms: float) -> None:
        is_quick = self._chooser.prices.are_quick
        self.costs.observe_step(n_rows, n_ctx_total, ms, notices_pace=is_quick)
        if self._entry is not None:
            self._entry |= {"rows": n_rows, "context": n_ctx_total, "step_ms": ms}

    def observe_draft(
        self, source: str, n_tokens: int, n_sequences: int, ms: float, n_pending: int = 0
    ) -> None:
        self.costs.observe_draft(source, n_tokens, n_sequences, ms, n_pending)
        if self._entry is not None:
            self._entry["draft_ms"][source] = ms

    # Before drafting

    def plan(self, asks: Sequence[PlanRequest]) -> Sequence[Plan]:
        self._asks = asks
        self._n_rounds += 1
        if len(asks) == 1:
            ask = asks[0]
            text = self._texts[ask.sequence]
            if text.fresh > 0 and self._is_kept(ask, text):
                text.fresh -= 1
                text.n_rounds += 1
                self._pass(1.0, text.cost)
            else:
                text.plan = self._plan_one(ask, text)
                text.plans = [text.plan]
            self._plans = text.plans
        else:
            self._plans = self._plan_many(asks) if asks else ()
        if self._trace is not None:
            self._begin_entry()
        return self._plans

    def _is_kept(self, ask: PlanRequest, text: SequenceStats) -> bool:
        if text.cheap or text.plan.n_model > ask.max_draft:
            return False
        for draft in ask.cheap:  # noqa: SIM110 - a generator costs more than the loop
            if draft.tokens:
                return False
        return True

    def _pass(self, tokens: float, time: float) -> None:
        """A round of so many texts, which takes so many plain steps' worth of time."""
        self._tokens = _FORGET * self._tokens + tokens
        self._time = _FORGET * self._time + time
        self._explorer.budget.total += time

    def _pass_plainly(self, n_rounds: int) -> None:
        """As `_pass` with plain steps, of which every text tells; the budget has them already."""
        n_texts = len(self._texts)
        kept = _FORGET ** (n_rounds / n_texts)
        plain = n_texts * (1.0 - kept) / (1.0 - _FORGET)
        self._tokens = kept * self._tokens + plain
        self._time = kept * self._time + plain

    def _plan_one(self, ask: PlanRequest, text: SequenceStats) -> Plan:
        chooser, prices = self._chooser, self._chooser.prices
        text.meet(ask)
        prices.read(1, len(ask.tokens))
        steps = prices.steps
        if self._explorer.lacks_plain(1, self._n_rounds - 1):
            return self._keep(ask, text, Plan(is_probe=True))
        if prices.are_quick:
            return self._keep(ask, text, self._thrift.plan(ask, text))
        gains = chooser.gains(ask, text)
        chooser.rate = self._tokens / self._time / steps[1]  # reached lately
        for source, found in gains.items():
            possible = best_rate(found, steps, prices.drafts(source, 1))
            chooser.rate = max(chooser.rate, possible)
        plan, value = chooser.best(ask, text, gains, Rows(steps, 1, 1))
        if not plan.n_cheap:
            plan = self._explorer.instead(ask, text, gains, plan, value)
        if plan.model and self._explorer.lacks_news_of_plain(1, chooser.rate * steps[1]):
            plan = Plan(is_probe=True)
        return self._keep(ask, text, plan)

    def _keep(self, ask: PlanRequest, text: SequenceStats, plan: Plan) -> Plan:
        prices = self._chooser.prices
        steps = prices.steps
        if plan.model:
            ms = steps[1 + plan.n_model] + prices.drafts(plan.model, 1)[plan.n_model]
            patience = text.patience.get(plan.model)
            if patience is not None and not plan.is_probe:
                patience.used(text.n_rounds)
        else:
            ms = steps[1 + plan.n_cheap]
        text.cost = ms / steps[1]
        self._pass(1.0, text.cost)
        if prices.are_quick:
            return plan
        text.fresh = 0
        is_settled = text.rests or text.n_rounds >= _FIRST_ROUNDS
        if is_settled and not plan.is_probe and not plan.n_cheap:
            # Without a draft nothing new is learned, until somebody is due to be tried again.
            text.fresh = _KEPT_FOR if plan.model else _IDLE_FOR
            for source, patience in text.patience.items():
                if source != plan.model:
                    text.fresh = max(min(text.fresh, patience.due - text.n_rounds - 1), 0)
        return plan

    def _plan_many(self, asks: Sequence[PlanRequest]) -> Sequence[Plan]:
        chooser, prices, n = self._chooser, self._chooser.prices, len(asks)
        prices.read(n, sum(len(ask.tokens) for ask in asks))
        texts = [self._texts[ask.sequence] for ask in asks]
        for ask, text in zip(asks, texts, strict=True):
            text.meet(ask)
            text.fresh = 0
        if self._explorer.lacks_plain(n, self._n_rounds - 1):
            self._pass(n, n)
            return self._give(texts, [Plan(is_probe=True) for _ in asks])
        chooser.rate = max(self._tokens / self._time, 1.0) * n / prices.steps[n]
        # Costs that may be wrong are no reason to have nothing to try: whether drafts pay is for
        # the allocation to say.
        row = min(prices.row(n), prices.row(n, hoped=True))
        rows = Rows([row * k for k in range(_LONGEST + 2)], 0, n)
        plans: list[Plan] = []
        options: list[Option] = []
        for ask, text in zip(asks, texts, strict=True):
            gains = chooser.gains(ask, text)
            plan, _ = chooser.best(ask, text, gains, rows)
            plans.append(plan)
            options.append(chooser.option(ask, text, plan, gains))
        allocation, possible = self._explorer.allocate(options)
        chooser.rate = max(chooser.rate, possible)
        if any(allocation.lengths) and self._explorer.lacks_news_of_plain(
            n, possible * prices.steps[n] / n
        ):
            self._pass(n, n)
            return self._give(texts, [Plan(is_probe=True) for _ in asks])
        n_rows = n + sum(allocation.lengths)
        for ask, text, plan, length in zip(asks, texts, plans, allocation.lengths, strict=True):
            _shorten(plan, length)
            n_rows += self._explorer.probe_among(ask, text, plan, n, n_rows)
        self._pass(n, allocation.ms / prices.steps[n] * n)
        if prices.are_quick:
            offered = {offer.source for ask in asks for offer in ask.models}
            self._thrift.judged(offered, {plan.model for plan in plans})
        return self._give(texts, plans)

    def _give(self, texts: Sequence[SequenceStats], plans: list[Plan]) -> Sequence[Plan]:
        for text, plan in zip(texts, plans, strict=True):
            text.plan = plan
        return plans

    def go_on(self, ask: DraftRequest, draft: Draft) -> None:
        steps = self._chooser.prices.steps
        n = len(draft.tokens)
        self._n_rounds += 1
        self._pass(1.0, steps[min(1 + n, len(steps) - 1)] / steps[1])
        if self._trace is not None:
            self._asks = [PlanRequest(ask.sequence, ask.tokens, ask.max_draft, [draft])]
            self._plans = [Plan(cheap=0, n_cheap=n)]
            self._begin_entry()

    # After drafting

    def cut(self, drafts: Sequence[Draft]) -> Sequence[int]:
        if len(drafts) == 1:
            ask, plan, draft = self._asks[0], self._plans[0], drafts[0]
            text = self._texts[ask.sequence]
            text.cut_rate = 0.0
            if not plan.model or plan.is_probe:
                return (len(draft.tokens),)
            rates = self._rates(ask, text, plan, draft)
            if rates is None:
                return (len(draft.tokens),)
            chooser = self._chooser
            n, _ = best_length(gains_of(rates), chooser.prices.steps, 1, (), chooser.rate)
            self._note_cut(text, plan, n, rates)
            return (n,)
        return self._cut_many(drafts)

    def _cut_many(self, drafts: Sequence[Draft]) -> Sequence[int]:
        lengths = [len(draft.tokens) for draft in drafts]
        known: list[list[float] | None] = []
        for ask, plan, draft in zip(self._asks, self._plans, drafts, strict=True):
            text = self._texts[ask.sequence]
            text.cut_rate = 0.0
            is_open = bool(plan.model) and not plan.is_probe
            known.append(self._rates(ask, text, plan, draft) if is_open else None)
        if not any(known):
            return lengths
        # What cannot be cut counts as if it were certain.
        options = [
            Option(gains_of(rates) if rates else [1.0] * n)
            for rates, n in zip(known, lengths, strict=True)
        ]
        prices = self._chooser.prices
        found, _ = allocate(options, prices.steps, prices.drafts, self._chooser.rate)
        for i, (ask, rates) in enumerate(zip(self._asks, known, strict=True)):
            if rates:
                lengths[i] = found.lengths[i]
                self._note_cut(self._texts[ask.sequence], self._plans[i], lengths[i], rates)
        return lengths

    def _rates(
        self, ask: PlanRequest, text: SequenceStats, plan: Plan, draft: Draft
    ) -> list[float] | None:
        """Chance of each token, given the ones before it; None: nothing new is known of them."""
        n = len(draft.tokens)
        track = text.track(plan.model)
        n_model = draft.sources.count(plan.model)
        if plan.cheap == NOTHING:
            if not n:
                if plan.stop_below:
                    track.impute(0, track.of_chance(0.5 * plan.stop_below))
                return None
            if not draft.chances or not track.may_doubt():
                return None
            return track.of_tokens(0, draft.chances, n)
        if n_model:
            text.agreement += _AGREEMENT * ((n > n_model) - text.agreement)
        other = ask.cheap[plan.cheap]
        cheap = text.cheap_track(other).of_tokens(0, other.chances, n)
        if n == n_model:
            return None
        own = track.of_tokens(0, draft.chances[:n_model], n_model)
        return [max(a, b) for a, b in zip(own, cheap, strict=False)] + cheap[n_model:]

    def _note_cut(self, text: SequenceStats, plan: Plan, n: int, rates: Sequence[float]) -> None:
        if n == len(rates):
            return
        if n:
            text.cut_rate = rates[n]
        elif plan.model:
            text.track(plan.model).impute(0, rates[0])

    def settle(self, sequence: int, draft: Draft, n_accepted: int) -> None:
        self._tokens += n_accepted
        text = self._texts.get(sequence)
        if text is None:
            return
        model = text.plan.model
        if model and draft.tokens and draft.sources[0] == model:
            n = len(draft.tokens)
            if draft.sources[-1] != model:
                n = draft.sources.count(model)
            text.observe(model, n, n_accepted, draft.chances)
        if self._entry is not None:
            self._entry["taken"][str(sequence)] = [len(draft.tokens), n_accepted]

    def missed(self, sequence: int) -> None:
        text = self._texts.get(sequence)
        if text is not None and text.plan.model and text.plan.stop_below:
            track = text.track(text.plan.model)
            track.impute(0, track.of_chance(0.5 * text.plan.stop_below))

    # Rounds that are told of late

    def set_aside(self) -> Late:
        entry, self._entry = self._entry, None
        asks = zip(self._asks, self._plans, strict=True)
        return Late({ask.sequence: plan for ask, plan in asks}, entry)

    @contextmanager
    def of(self, late: Late) -> Iterator[None]:
        texts = [(self._texts[i], plan) for i, plan in late.plans.items() if i in self._texts]
        now = [text.plan for text, _ in texts]
        for text, plan in texts:
            text.plan, text.cut_rate = plan, 0.0
        self._entry = late.entry
        yield
        for (text, _), plan in zip(texts, now, strict=True):
            text.plan = plan
        if self._entry is not None and self._trace is not None:
            self._trace.write(self._entry)
        self._entry = None

    # The trace

    def _begin_entry(self) -> None:
        trace = self._trace
        assert trace is not None, "only called with a trace"
        if self._entry is not None:
            trace.write(self._entry)
        steps, plans = self._chooser.prices.steps, self._plans
        n = len(self._asks)
        self._entry = {
            "round": self._n_rounds,
            "believed": {
                "rate": self._chooser.rate,
                "steps": [round(ms, 5) for ms in steps[n : n + _TRACED]],
                "sources": {
                    str(ask.sequence): {
                        source: [round(rate, 3) for rate in track.rates()[:_TRACED_PLACES]]
                        for source, track in self._texts[ask.sequence].tracks.items()
                    }
                    for ask in self._asks
                },
                "spent": round(self._explorer.budget.spent, 3),
            },
            "chosen": [
                {
                    "sequence": ask.sequence,
                    "at": len(ask.tokens),
                    "model": plan.model,
                    "n_model": plan.n_model,
                    "cheap": ask.cheap[plan.cheap].sources[0] if plan.n_cheap else "",
                    "n_cheap": plan.n_cheap,
                    "probe": plan.is_probe,
                }
                for ask, plan in zip(self._asks, plans, strict=True)
            ],
            "draft_ms": {},
            "taken": {},
        }

    def rested(self, sequence: int, n_rounds: int) -> None:
        # They count for the budget only: who is asked seldom thinks anew, and probes, seldom.
        self._explorer.budget.total += n_rounds
        if (text := self._texts.get(sequence)) is not None:
            text.rests = True
            if not self._chooser.prices.are_quick:
                text.n_rounds += n_rounds
                text.fresh -= n_rounds
                self._pass_plainly(n_rounds)

    def close(self) -> None:
        if self._costs_file is not None and self.costs.n_timings(1):
            self.costs.save(self._costs_file)
        if self._trace is not None:
            if self._entry is not None:
                self._trace.write(self._entry)
                self._entry = None
            self._trace.close()


def _shorten(plan: Plan, n: int) -> None:
    if plan.model:
        plan.n_model = n
        if not n:
            plan.model, plan.cheap, plan.n_cheap = "", NOTHING, 0
    elif plan.n_cheap:
        plan.n_cheap = n
        if not n:
            plan.cheap = NOTHING
