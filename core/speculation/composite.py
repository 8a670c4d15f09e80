"""Several drafters as one: they draft, their drafts are spliced, and the outcome is accounted.

N-gram drafters cost next to nothing and draft first; then the policy decides for which sequences a
network drafts and how far; then the splice joins the drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from time import perf_counter
from typing import Final

from ..backend.interface.device_loop import DraftLimit
from ..backend.layers import Floats
from ..state.store import StateStore
from .device_speculation import DeviceSpeculation, DrafterHandover, RoundOutcome, RoundPlan
from .draft import Draft, DraftRequest
from .drafter_results import DrafterResult, ResultFile
from .drafters.hidden_state import HiddenStateDrafter
from .interface import SavesState, SequenceStart, Speculator, StepResult
from .rounds import DraftPlan, NetworkOffer, PlanRequest, Policy, Round
from .splice import splice

_TIMED_EVERY: Final = 4  # steps without drafts


class CompositeSpeculator(Speculator, SavesState):
    def __init__(
        self,
        drafters: Sequence[Speculator],
        policy: Policy,
        result_files: Mapping[str, ResultFile] | None = None,
    ) -> None:
        """`drafters` in the order of precedence. `result_files`: by drafter, where what it brought
        is kept at the end."""
        self._all, self.policy = list(drafters), policy
        self._result_files = result_files or {}
        self._cheap = [each for each in drafters if not each.is_network]
        self._networks = [each for each in drafters if each.is_network]
        self._observers = [e for e in drafters if type(e).observe is not Speculator.observe]
        self.results = {each.name: DrafterResult() for each in self._networks}
        self.taps = frozenset().union(*(each.taps for each in drafters))
        self.reruns_last = any(each.reruns_last for each in drafters)
        self._decided: Round | None = None  # of the step that runs
        self._drafts: dict[int, Draft] = {}  # the latest of each sequence
        self._held = Round()  # the latest decision, which holds for `_n_held` further rounds
        self._held_sources: list[frozenset[str]] = []  # the drafters that its requests allowed
        self._n_held = 0
        self._n_untimed = 0  # steps without drafts since one was timed

    def attach(self, store: StateStore) -> None:
        for each in self._all:
            each.attach(store)

    def begin(self, start: SequenceStart) -> None:
        self._n_held = 0
        self.policy.begin(start.sequence)
        for each in self._all:
            each.begin(start)

    def skips_step(self, sequences: Sequence[int]) -> bool:
        self._decided = None
        if self._n_held < 1:
            return False
        if sequences != [request.sequence for request in self._held.requests]:
            self._n_held = 0
        if self._n_held < 1 or self._held.has_drafts:
            return False
        self._n_held -= 1
        return True

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        drafts = [Draft() for _ in requests]
        if self._n_held > 0 and self._held_sources == [request.sources for request in requests]:
            self._n_held -= 1
            decided = self.policy.repeat(self.plan_requests(requests), self._held)
        else:
            decided = self._plan(requests, drafts)
        self._decided = decided
        for network in self._networks:
            self._ask_network(network, requests, decided, drafts)
        for request, draft in zip(requests, drafts, strict=True):
            self._drafts[request.sequence] = draft
            if not draft.tokens:
                self.policy.settle(decided, request.sequence, draft, 0)
        return drafts

    def _plan(self, requests: Sequence[DraftRequest], drafts: list[Draft]) -> Round:
        """A new decision; fills in the n-gram drafts."""
        began = perf_counter()
        cheap = self.ask_cheap(requests)
        decided = self.policy.plan(self.plan_requests(requests, cheap))
        for i, plan in enumerate(decided.plans):
            if plan.n_cheap:
                drafts[i] = cheap[i][plan.cheap].shortened(plan.n_cheap)
            for other in cheap[i]:  # all have drafted
                drafts[i].ms.update(other.ms)
        ms = 1000 * (perf_counter() - began)
        self._held, self._held_sources = decided, [request.sources for request in requests]
        self._n_held = self.policy.rounds_held(decided, ms)
        if any(plan.is_probe for plan in decided.plans):
            self._n_untimed = _TIMED_EVERY
        return decided

    def ask_cheap(self, requests: Sequence[DraftRequest]) -> list[list[Draft]]:
        """N-gram drafts by request, then by drafter."""
        found: list[list[Draft]] = [[] for _ in requests]
        for each in self._cheap:
            began = perf_counter()
            drafts = each.propose(requests)
            ms = 1000 * (perf_counter() - began) / max(len(requests), 1)
            for own, request, draft in zip(found, requests, drafts, strict=True):
                if request.sources and each.name not in request.sources:
                    draft = Draft()
                draft.ms[each.name] = ms
                own.append(draft)
        return found

    def plan_requests(
        self, requests: Sequence[DraftRequest], cheap: Sequence[Sequence[Draft]] = ()
    ) -> list[PlanRequest]:
        return [
            PlanRequest(
                request.sequence,
                request.tokens,
                request.max_draft,
                drafts,
                [
                    NetworkOffer(
                        each.name, each.longest, each.n_pending(request.sequence), each.n_trial
                    )
                    for each in self._networks
                    if not request.sources or each.name in request.sources
                ],
                request.n_rows,
                request.is_fixed,
            )
            for request, drafts in zip(requests, cheap or repeat(()), strict=False)
        ]

    def _ask_network(
        self,
        network: Speculator,
        requests: Sequence[DraftRequest],
        decided: Round,
        drafts: list[Draft],
    ) -> None:
        chosen = [i for i, plan in enumerate(decided.plans) if plan.network == network.name]
        if not chosen:
            return
        plans = [decided.plans[i] for i in chosen]
        wanted = [_limited(requests[i], decided.plans[i]) for i in chosen]
        n_pending = 0
        for request, plan in zip(wanted, plans, strict=True):
            n = network.n_pending(request.sequence)
            n_pending += min(n, network.n_trial) if plan.is_trial else n
        began = perf_counter()
        made = network.propose(wanted)
        ms = 1000 * (perf_counter() - began)
        longest = max(plan.n_network for plan in plans)
        self.policy.observe_draft(decided, network.name, longest, len(chosen), ms, n_pending)
        for i, draft in zip(chosen, made, strict=True):
            draft.ms[network.name] = ms / len(chosen)
            drafts[i] = splice(drafts[i], draft, requests[i].max_draft)

    def observe(self, result: StepResult) -> None:
        for each in self._observers:
            each.observe(result)
        step = result.step
        if len(step.out_rows) == len(step.tokens) and self._is_timed():  # no pieces of prompts
            n_cells = int(step.past.sum())
            self.policy.observe_step(self._decided, len(step.tokens), n_cells, result.ms)

    def _is_timed(self) -> bool:
        """Of steps without drafts, which are alike, not all are."""
        decided = self._decided
        if decided is not None and (decided.has_drafts or decided.trace is not None):
            return True
        self._n_untimed += 1
        if self._n_held > 0 or self._n_untimed < _TIMED_EVERY:
            return False
        self._n_untimed = 0
        return True

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        assert self._decided is not None, "a draft was proposed"
        draft = self._drafts[sequence]
        self.policy.settle(self._decided, sequence, draft, n_accepted)
        self.settle_all(sequence, draft, n_accepted)

    def settle_all(self, sequence: int, draft: Draft, n_accepted: int) -> None:
        for each in self._all:
            each.settle(sequence, n_accepted, mine=each.name in draft.sources)
        for name, result in self.results.items():
            if n := draft.sources.count(name):
                result.count(n, draft.sources[:n_accepted].count(name))

    def end(self, sequence: int) -> None:
        self.policy.end(sequence)
        self._drafts.pop(sequence, None)
        for each in self._all:
            each.end(sequence)

    def for_device(self) -> DeviceSpeculation | None:
        """If no network drafts, or one that a device can run by itself."""
        if not self._networks:
            return CompositeDevice(self, None)
        network = self._networks[0]
        if len(self._networks) > 1 or not isinstance(network, HiddenStateDrafter):
            return None
        return CompositeDevice(self, network) if network.can_be_lent else None

    def recover(self) -> None:
        self._decided, self._n_held = None, 0
        for each in self._all:
            each.recover()

    def forget(self) -> None:
        for each in self._all:
            each.forget()

    def close(self) -> None:
        self.policy.close()
        for each in self._all:
            each.close()
        for name, file in self._result_files.items():
            file.add(self.results.pop(name, DrafterResult()))

    # saving: blobs of a drafter are named after it

    def carry(self, sequence: int) -> dict[str, bytes]:
        return {k: v for each in self._savers() for k, v in each.carry(sequence).items()}

    def save(self, sequence: int) -> dict[str, bytes]:
        return {
            f"{name}.{k}": v
            for name, each in self._named_savers()
            for k, v in each.save(sequence).items()
        }

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        for name, each in self._named_savers():
            if own := _share(blobs, name):
                each.load(sequence, own)

    def save_prefix(self, tokens: Sequence[int]) -> dict[str, bytes]:
        return {
            f"{name}.{k}": v
            for name, each in self._named_savers()
            for k, v in each.save_prefix(tokens).items()
        }

    def load_prefix(self, tokens: Sequence[int], blobs: dict[str, bytes]) -> None:
        for name, each in self._named_savers():
            if own := _share(blobs, name):
                each.load_prefix(tokens, own)

    def forget_prefix(self, tokens: Sequence[int]) -> None:
        for each in self._savers():
            each.forget_prefix(tokens)

    def _savers(self) -> Iterator[SavesState]:
        return (each for each in self._all if isinstance(each, SavesState))

    def _named_savers(self) -> Iterator[tuple[str, SavesState]]:
        return ((each.name, each) for each in self._all if isinstance(each, SavesState))


def _limited(request: DraftRequest, plan: DraftPlan) -> DraftRequest:
    """As far as the plan lets a network draft."""
    return request._replace(
        max_draft=plan.n_network, stop_below=plan.stop_below, is_trial=plan.is_trial
    )


def _share(blobs: dict[str, bytes], name: str) -> dict[str, bytes]:
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in blobs.items() if k.startswith(prefix)}


class CompositeDevice(DeviceSpeculation):
    """The same in rounds of a device loop: the hidden-state drafter drafts there.

    N-grams are looked up before each round. Where one has a draft, no further round is enqueued:
    once the rounds under way are read, an ordinary step drafts, with the splice as ever.
    """

    def __init__(self, composite: CompositeSpeculator, network: HiddenStateDrafter | None) -> None:
        self._composite, self._network = composite, network
        if network is not None:
            self.drafter, self.source = network.device_drafter(), network.name

    def choose(
        self, sequences: Sequence[int], requests: Sequence[DraftRequest]
    ) -> RoundPlan | None:
        composite, drafts = self._composite, self._network is not None
        cheap = composite.ask_cheap(requests)
        if any(draft.tokens for found in cheap for draft in found):
            return None
        plan_requests = composite.plan_requests(requests)
        decided = composite.policy.plan(plan_requests) if requests else Round()
        limits = {
            request.sequence: self._limit(plan)
            for request, plan in zip(requests, decided.plans, strict=True)
        }
        return RoundPlan(drafts, limits, decided)

    def _limit(self, plan: DraftPlan) -> DraftLimit:
        if self._network is None or not plan.network:
            return DraftLimit()
        p_min = max(self._network.p_min, plan.stop_below)
        return DraftLimit(min(plan.n_network, self._network.longest), p_min)

    def lend(self, sequence: int, last: int, room: int) -> DrafterHandover:
        assert self._network is not None, "a network drafts"
        return self._network.lend(sequence, last, room)

    def give_back(
        self, sequence: int, n_cells: int, fresh: Sequence[int], hidden: Floats | None
    ) -> None:
        assert self._network is not None, "a network drafts"
        self._network.give_back(sequence, n_cells, fresh, hidden)

    def settle(
        self, plan: RoundPlan, outcomes: Sequence[RoundOutcome], ms: tuple[float, float],
        n_rows: int, n_ctx: int,
    ) -> None:  # fmt: skip
        policy, decided, longest = self._composite.policy, plan.decided, plan.longest
        drafting = [o for o in outcomes if plan.limits.get(o.sequence, DraftLimit()).length]
        if drafting:
            n_pending = sum(outcome.n_fresh - 1 for outcome in drafting)
            policy.observe_draft(decided, self.source, longest, len(drafting), ms[0], n_pending)
        policy.observe_step(decided, n_rows, n_ctx, ms[1])
        for outcome in drafting:
            policy.settle(decided, outcome.sequence, outcome.draft, outcome.n_accepted)
            if outcome.draft.tokens:
                self._composite.settle_all(outcome.sequence, outcome.draft, outcome.n_accepted)
