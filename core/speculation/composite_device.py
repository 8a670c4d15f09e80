"""A composite speculator in rounds of a device loop: the hidden-state drafter drafts there.

N-grams are looked up before each round. Where one has a draft, no further round is enqueued: once
the rounds under way are read, an ordinary step drafts, with the splice as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..backend.interface.device_loop import DraftLimit
from ..backend.layers import Floats
from .device_speculation import DeviceSpeculation, DrafterHandover, RoundOutcome, RoundPlan
from .drafters.hidden_state import HiddenStateDrafter
from .interface import DraftRequest
from .rounds import DraftPlan, Round

if TYPE_CHECKING:
    from .composite import CompositeSpeculator


class CompositeDevice(DeviceSpeculation):
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
        plan_requests = composite.plan_requests(requests, [[] for _ in requests])
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
