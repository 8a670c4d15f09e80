"""`Controller`: which drafters draft and how much, so that the most tokens come out per second.

For each round and sequence: nothing, the beginning of an n-gram draft, a network's draft, or both
spliced. Pure logic without a clock or random numbers. docs/speculation.md explains the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ..cost_file import save_costs
from ..rounds import NOTHING, DraftPlan, Outlook, PlanRequest, Policy, Round
from ..trace import Estimates, Trace
from .acceptance_estimates import AcceptanceCounts, Track
from .allocate import (
    Allocation,
    Candidate,
    allocate,
    best_drafted,
    best_length,
    best_rate,
    gains_of,
)
from .costs import LONGEST, CostModel
from .fixed import longest_plan
from .planning_interval import RepetitionRate, best_interval
from .sequence_stats import SequenceStats

if TYPE_CHECKING:
    from ..draft import Draft

_FORGET: Final = 0.95  # what is left of the rate that was reached, after a round
_LONGEST_CHECK: Final = 3  # network tokens before the tail of an n-gram draft
_PLANNING: Final = 0.01  # of the time: what considering networks may take
_CHANGE: Final = 25.0  # rounds in which a text may have changed its character
_LONGEST_HELD: Final = 16  # rounds that a decision to draft holds
_LONGEST_PAUSE: Final = 256  # the same of one not to
_UNTIL_STEADY: Final = 2  # plain rounds before one is timed: planning empties the CPU's caches
_INVESTED_FOR: Final = 24  # rounds over which reading waiting rows has to pay

_OUTLOOK: Final = 16  # tokens of a draft that is judged

_SHARE: Final = 0.01  # of all time that learning may cost
_CREDIT: Final = 1.0  # plain steps that it may cost before any time has passed
_PLAIN_ROUNDS: Final = (0, 10, 30)  # in which a step without drafts is timed
_CLOSE: Final = 1.2  # times as fast as plain: then plain steps are timed again
_OLD: Final = 30  # steps after which such a timing is old
_LIKELY: Final = 1.3  # times the least that an unknown step could take: what it probably takes
_AGAIN: Final = 32  # rounds after which a probe that was too expensive is considered again


class ProbeBudget:
    """Time for learning, in plain steps."""

    def __init__(self) -> None:
        self.spent = self.total = 0.0

    def spend(self, loss: float) -> bool:
        """Whether there is so much."""
        if self.spent + loss > _CREDIT + _SHARE * self.total:
            return False
        self.spent += max(loss, 0.0)
        return True


class Controller(Policy):
    def __init__(
        self,
        costs: CostModel | None = None,
        trace: Trace | None = None,
        costs_file: Path | None = None,
    ) -> None:
        """`costs_file`: where learned costs are written at the end."""
        self.costs = costs or CostModel()
        self.repeats = self.costs.is_frozen
        self.budget = ProbeBudget()
        self.rate = 1.0  # tokens that a millisecond is worth
        self.n_rounds = 0
        self._repetitions = RepetitionRate()
        self._tokens = self._time = 1.0  # made lately, and the plain steps' worth of time it took
        self._sequences: dict[int, SequenceStats] = {}
        self._shared: dict[str, AcceptanceCounts] = {}
        self._waits: dict[str, int] = {}
        self._trace, self._costs_file = trace, costs_file

    def begin(self, sequence: int) -> None:
        self._sequences[sequence] = SequenceStats(self._shared, self._waits)

    def end(self, sequence: int) -> None:
        self._sequences.pop(sequence, None)

    # before drafting

    def plan(self, requests: Sequence[PlanRequest]) -> Round:
        if not requests:
            return Round()
        self.n_rounds += 1
        sequences = [self._sequences[request.sequence] for request in requests]
        plans = self._plan(requests, sequences)
        return self._round(requests, plans)

    def _round(self, requests: Sequence[PlanRequest], plans: Sequence[DraftPlan]) -> Round:
        decided = Round(requests, plans)
        if self._trace is not None:
            estimates = Estimates(self.n_rounds, self.rate, self.costs.steps, self.budget.spent)
            sequences = [self._sequences[request.sequence] for request in requests]
            decided.trace = self._trace.entry(estimates, decided, sequences)
        return decided

    def _plan(
        self, requests: Sequence[PlanRequest], sequences: Sequence[SequenceStats]
    ) -> list[DraftPlan]:
        costs, n = self.costs, len(requests)
        costs.prepare(n, sum(request.n_cells for request in requests))
        pairs = list(zip(requests, sequences, strict=True))
        for request, sequence in pairs:
            sequence.meet(request)
        plain = costs.steps[n] / n
        if self._lacks_plain(n):
            return self._take(requests, [DraftPlan(is_probe=True) for _ in requests], plain)
        reached = self._tokens / self._time
        self.rate = (reached if n == 1 else max(reached, 1.0)) / plain
        if not any(request.networks or stats.has_cheap for request, stats in pairs):
            return self._take(requests, [DraftPlan() for _ in requests], plain)
        plans, found, values = [], [], []
        for request, sequence in pairs:
            gains = self._gains(request, sequence, n)
            plan, value = self._best(request, sequence, gains, n)
            plans.append(plan)
            values.append(value)
            found.append(self._candidate(request, sequence, plan, gains, n))
        lengths = self._allocate(requests, plans, found)
        is_drafting = any(plan.network or (n > 1 and plan.n_cheap) for plan in plans)
        if is_drafting and self._lacks_news_of_plain(n, self.rate * plain):
            return self._take(requests, [DraftPlan(is_probe=True) for _ in requests], plain)
        n_rows = n + sum(lengths)
        for i, (request, sequence) in enumerate(pairs):
            n_rows += self._probe(request, sequence, plans[i], values[i], n, n_rows)
        return self._take(requests, plans, plain)

    def _lacks_plain(self, n: int) -> bool:
        timings = self.costs.n_timings(n)
        return timings < len(_PLAIN_ROUNDS) and self.n_rounds > _PLAIN_ROUNDS[timings]

    def _lacks_news_of_plain(self, n: int, gain: float) -> bool:
        """A gain smaller than the machine's variation may be a loss. `gain`: the expected
        rate with drafts, in parts of the plain rate."""
        lacks = gain < _CLOSE and self.costs.age(n) > _OLD
        if lacks:
            self.costs.expire()
        return lacks

    def _gains(
        self, request: PlanRequest, sequence: SequenceStats, n: int
    ) -> dict[str, list[float]]:
        found = {}
        for offer in request.networks:
            longest = min(offer.max_draft, request.max_draft, sequence.reach_of(offer.source))
            found[offer.source] = gains_of(sequence.track(offer.source).places(longest))
            if n == 1:
                possible = best_rate(
                    found[offer.source], self.costs.steps, self.costs.drafts(offer.source, 1)
                )
                self.rate = max(self.rate, possible)
        return found

    def outlook(self, source: str) -> Outlook | None:
        counts, steps = self._shared.get(source), self.costs.steps
        if counts is None or not any(seen for _, seen in counts.by_place) or not self.n_rounds:
            return None
        gains = gains_of(Track(counts).places(_OUTLOOK))
        rate, length = best_drafted(gains, steps, self.costs.drafts(source, 1))
        return Outlook(rate * steps[1], length)

    def _rows(self, n: int) -> Sequence[float]:
        """What rows cost one of `n` sequences: exactly for one alone; for several what they cost
        where they are cheapest, since the allocation decides whether drafts pay together."""
        if n == 1:
            return self.costs.steps[1:]
        row = min(self.costs.row(n), self.costs.row(n, optimistic=True))
        return [row * k for k in range(LONGEST + 2)]

    def _drafts(self, source: str, n: int) -> Sequence[float]:
        return [ms / n for ms in self.costs.drafts(source, n)]

    def _best(
        self, request: PlanRequest, sequence: SequenceStats, gains: dict[str, list[float]], n: int
    ) -> tuple[DraftPlan, float]:
        """The best plan for this sequence alone, and what it is worth in tokens."""
        rows, rate = self._rows(n), self.rate
        plan, best = DraftPlan(), 0.0
        # Paid again for every draft of n-grams.
        planned = self.costs.planning(n) * rate / n if sequence.has_cheap else 0.0
        cheap = []
        for i, draft in enumerate(request.cheap):
            k = min(len(draft.tokens), request.max_draft, len(rows) - 1)
            rates = sequence.cheap_track(draft).of_tokens(draft.chances, k) if k else []
            cheap.append(rates)
            length, value = best_length(gains_of(rates), rows, (), rate)
            if value - planned > best:
                plan, best = DraftPlan(cheap=i, n_cheap=length), value - planned
        for offer in request.networks:
            source, drafts = offer.source, self._drafts(offer.source, n)
            once = self.costs.reading(source, offer.n_pending) * rate / _INVESTED_FOR
            length, value = best_length(gains[source], rows, drafts, rate)
            if length and value - once > best:
                plan, best = DraftPlan(network=source, n_network=length), value - once
                row = self.costs.row(n)
                plan.stop_below = sequence.track(source).least_chance(
                    rate * (row + drafts[2] - drafts[1])
                )
            for i, rates in enumerate(cheap):
                length, n_cheap, value = self._spliced(sequence, rates, gains[source], rows, drafts)
                if length and value - once > best:
                    plan, best = DraftPlan(i, n_cheap, source, length), value - once
        return plan, best

    def _spliced(
        self,
        sequence: SequenceStats,
        cheap: Sequence[float],
        gains: Sequence[float],
        rows: Sequence[float],
        drafts: Sequence[float],
    ) -> tuple[int, int, float]:
        """How much of a network's draft to put before the tail of an n-gram draft, and where that
        ends: a token or two may be enough to know whether the n-gram is right."""
        n_best, n_all, best, reach, own = 0, 0, 0.0, 1.0, 0.0
        for n in range(1, min(len(cheap), len(gains), _LONGEST_CHECK + 1)):
            own += gains[n - 1]
            reach *= cheap[n - 1]
            # The tail is verified only if both agree: so often its rows count.
            tail = [reach * gain for gain in gains_of(cheap[n:])]
            length, beyond = best_length(tail, rows[n:], (), self.rate)
            ms = rows[n] - rows[0] + drafts[n]
            value = own + sequence.agreement * beyond - self.rate * ms
            if value > best:
                n_best, n_all, best = n, n + length, value
        return n_best, n_all, best

    def _candidate(
        self,
        request: PlanRequest,
        sequence: SequenceStats,
        plan: DraftPlan,
        gains: dict[str, list[float]],
        n: int,
    ) -> Candidate:
        if plan.network:
            return Candidate(gains[plan.network], plan.network)
        if plan.n_cheap:
            draft = request.cheap[plan.cheap]
            k = min(len(draft.tokens), request.max_draft)
            return Candidate(gains_of(sequence.cheap_track(draft).of_tokens(draft.chances, k)))
        if request.networks and n == 1:
            return Candidate(gains[request.networks[0].source], request.networks[0].source)
        return Candidate(())

    def _allocate(
        self,
        requests: Sequence[PlanRequest],
        plans: Sequence[DraftPlan],
        found: Sequence[Candidate],
    ) -> list[int]:
        """Fit the plans to each other; now and then other lengths, to learn their cost."""
        n, costs = len(plans), self.costs
        lengths = [plan.n_network or plan.n_cheap for plan in plans]
        if n > 1:
            best, possible = allocate(found, costs.steps, costs.drafts, self.rate)
            self.rate = max(self.rate, possible)
        else:
            plan, k = plans[0], lengths[0]
            if plan.n_cheap:
                return lengths
            drafts = costs.drafts(plan.network, 1)[k] if k else 0.0
            best = Allocation(lengths, 1.0 + sum(found[0].gains[:k]), costs.steps[1 + k] + drafts)
        best = self._explored(requests, found, best)
        for plan, candidate, length in zip(plans, found, best.lengths, strict=True):
            if length and not (plan.network or plan.n_cheap):
                plan.network, plan.is_probe = candidate.source, True
            elif plan.network and n == 1 and length != plan.n_network:
                plan.is_probe = True
            _shorten(plan, length)
        return best.lengths

    def _explored(
        self,
        requests: Sequence[PlanRequest],
        found: Sequence[Candidate],
        best: Allocation,
    ) -> Allocation:
        """Another allocation, if it could be better than the best and the budget has room."""
        steps, least, n, rate = self.costs.steps, self.costs.optimistic, len(found), self.rate
        if steps == least and not any(self.costs.is_unsure(each.source, n) for each in found):
            return best
        rows = [*steps[: n + 1], *least[n + 1 :]]
        other, _ = allocate(found, rows, self.costs.least_drafts, rate)
        once = sum(
            self.costs.reading(offer.source, offer.n_pending)
            for request, k in zip(requests, other.lengths, strict=True)
            for offer in request.networks[: k > 0]
        ) / _INVESTED_FOR  # fmt: skip
        value = best.tokens - rate * best.ms
        promised = other.tokens - rate * (other.ms + once)
        if other.lengths == best.lengths or promised <= value:
            return best
        n_rows = n + sum(other.lengths)
        ms = other.ms + min(steps[n_rows], _LIKELY * least[n_rows]) - rows[n_rows]
        if n == 1:  # of several, drafts have one table
            source, k = found[0].source, other.lengths[0]
            ms += self.costs.drafts(source, 1)[k] - self.costs.least_drafts(source, 1)[k]
        loss = ((value - other.tokens) / rate + ms + once) * n / steps[n]
        return other if self.budget.spend(loss) else best

    def _probe(
        self,
        request: PlanRequest,
        sequence: SequenceStats,
        plan: DraftPlan,
        value: float,
        n: int,
        n_rows: int,
    ) -> bool:
        """Try one token of a network that is not in use; returns whether a row was added."""
        costs = self.costs
        for offer in request.networks:
            backoff = sequence.backoff(offer.source)
            if plan.network == offer.source:
                if not plan.is_probe:
                    backoff.used(sequence.n_rounds)
                continue
            if plan.n_cheap or sequence.n_rounds < backoff.due or (n > 1 and plan.network):
                continue
            once = costs.reading(offer.source, min(offer.n_pending, offer.n_trial))
            row = min(costs.steps[n_rows + 1], _LIKELY * costs.optimistic[n_rows + 1])
            row = max(row - costs.steps[n_rows], costs.row(n) if n > 1 else 0.0)
            gain = sequence.track(offer.source).places(1)[0]
            ms = row + costs.drafts(offer.source, n)[1] / n + once
            loss = (ms + (value - gain) / self.rate) * n / costs.steps[n]
            if self.budget.spend(loss):
                backoff.loss = max(loss, 0.0)
                plan.network, plan.n_network, plan.stop_below = offer.source, 1, 0.0
                plan.is_probe = plan.is_trial = True
                return True
            backoff.due = sequence.n_rounds + _AGAIN
        return False

    def _take(
        self, requests: Sequence[PlanRequest], plans: Sequence[DraftPlan], plain: float
    ) -> list[DraftPlan]:
        """Note what the round costs. Sequences may have asked for drafts in any case."""
        plans = [
            longest_plan(request) if request.is_fixed else plan
            for request, plan in zip(requests, plans, strict=True)
        ]
        time = self._ms_of(plans) / plain
        self._tokens = _FORGET * self._tokens + len(plans)
        self._time = _FORGET * self._time + time
        self.budget.total += time
        return plans

    def _ms_of(self, plans: Sequence[DraftPlan]) -> float:
        """Of the drafts and the step, as expected."""
        n, costs = len(plans), self.costs
        n_rows = n + sum(plan.n_network or plan.n_cheap for plan in plans)
        depth: dict[str, int] = {}
        for plan in plans:
            if plan.network:
                depth[plan.network] = max(depth.get(plan.network, 0), plan.n_network)
        ms = costs.steps[min(n_rows, len(costs.steps) - 1)]
        return ms + sum(costs.drafts(source, n)[k] for source, k in depth.items())

    def repeat(self, requests: Sequence[PlanRequest], decided: Round) -> Round:
        self.n_rounds += 1
        plans = [
            replace(plan, n_network=min(plan.n_network, request.max_draft))
            for request, plan in zip(requests, decided.plans, strict=True)
        ]
        n = len(plans)
        return self._round(requests, self._take(requests, plans, self.costs.steps[n] / n))

    # after drafting

    def observe_draft(
        self, decided: Round, source: str, n_tokens: int, n_sequences: int, ms: float,
        n_pending: int = 0,
    ) -> None:  # fmt: skip
        self.costs.observe_draft(source, n_tokens, n_sequences, ms, n_pending)
        if decided.trace is not None:
            decided.trace["draft_ms"][source] = ms

    def observe_step(self, decided: Round | None, n_rows: int, n_ctx: int, ms: float) -> None:
        self.costs.observe_step(n_rows, n_ctx, ms)
        if decided is not None and decided.trace is not None:
            decided.trace |= {"rows": n_rows, "context": n_ctx, "step_ms": ms}

    def settle(self, decided: Round, sequence: int, draft: Draft, n_accepted: int) -> None:
        self._tokens += n_accepted
        stats, plan = self._sequences.get(sequence), decided.plan_of(sequence)
        if stats is None or plan is None:
            return
        if decided.trace is not None and draft.tokens:
            decided.trace["accepted"][str(sequence)] = [len(draft.tokens), n_accepted]
        if not plan.network:
            return
        if draft.tokens and draft.sources[0] == plan.network:
            stats.observe(plan, draft, n_accepted)
        elif not draft.tokens and plan.stop_below:
            track = stats.track(plan.network)
            track.impute(0, track.of_chance(0.5 * plan.stop_below))

    def rounds_held(self, decided: Round, ms: float) -> int:
        self.costs.observe_planning(len(decided.plans), ms)
        has_ngrams = any(plan.n_cheap for plan in decided.plans)
        is_free = not (has_ngrams or self.repeats or any(r.is_fixed for r in decided.requests))
        n_held = self._n_held(decided, ms) if is_free else 0
        self._repetitions.count(has_ngrams, 1 + n_held)
        if not decided.has_drafts:
            for request in decided.requests:
                self._sequences[request.sequence].n_rounds += n_held
        return n_held

    def _n_held(self, decided: Round, ms: float) -> int:
        """For how many further rounds a decision without n-gram drafts holds. Each plan costs time,
        and each round without one may miss the first tokens of a repetition."""
        cost = ms / self._ms_of(decided.plans)
        if any(plan.is_probe for plan in decided.plans):
            return 0 if decided.has_drafts else min(int(10 * cost), _UNTIL_STEADY)
        if decided.has_drafts:
            return min(int(best_interval(cost, _CHANGE)), _LONGEST_HELD)
        n_held = int(best_interval(cost, self._repetitions.mean_interval))
        if not any(request.cheap for request in decided.requests):
            n_held = _LONGEST_PAUSE
        n_idle = max(self._until_probe(decided.requests), int(cost / _PLANNING))
        return min(n_held, n_idle, _LONGEST_PAUSE)

    def _until_probe(self, requests: Sequence[PlanRequest]) -> int:
        """Rounds in which no network is tried: until then nothing new is known of them."""
        rounds = [
            self._sequences[request.sequence].until_probe(offer.source)
            for request in requests
            for offer in request.networks
        ]
        return min(rounds, default=_LONGEST_PAUSE)

    def close(self) -> None:
        if self._costs_file is not None and self.costs.n_timings(1):
            save_costs(self.costs, self._costs_file)
        if self._trace is not None:
            self._trace.close()


def _shorten(plan: DraftPlan, n: int) -> None:
    if not n:
        plan.network, plan.n_network, plan.cheap, plan.n_cheap = "", 0, NOTHING, 0
    elif plan.network:
        plan.n_network = n
    elif plan.n_cheap:
        plan.n_cheap = n
