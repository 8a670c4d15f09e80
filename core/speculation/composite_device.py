"""A chain of speculators in rounds: the MTP head drafts on the device, and nobody else.

N-grams are looked up before each round. Where one knows a continuation, no further round is
enqueued; once the text is read to its end, the ordinary step drafts, with the splice as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..backend.device_loop import DraftLimit
from ..backend.layers import Floats
from .device_speculation import DeviceSpeculation, DrafterHandover, RoundOutcome, RoundPlan
from .drafters.hidden_state import HiddenStateDrafter
from .interface import DraftRequest
from .plans import Late, ModelOffer, Plan, PlanRequest

if TYPE_CHECKING:
    from .composite import CompositeSpeculator


class CompositeDevice(DeviceSpeculation):
    def __init__(self, chain: CompositeSpeculator, mtp: HiddenStateDrafter | None) -> None:
        self._chain, self._mtp = chain, mtp
        if mtp is not None:
            self.drafter, self.source = mtp.round_drafter(), mtp.name

    def choose(self, sequences: Sequence[int], asks: Sequence[DraftRequest]) -> RoundPlan | None:
        chain = self._chain
        if chain.is_rehearsing or chain.is_known(asks):
            return None
        if chain.rest:
            chain.rest -= 1
            asks = ()
        states = {self._is_awake(sequence) for sequence in sequences}
        if len(states) != 1 or None in states:
            return None
        drafts = bool(states.pop())
        infos = [self._info(ask, drafts=drafts) for ask in asks]
        plans = chain.policy.plan(infos) if infos else ()
        limits = {ask.sequence: self._limit(plan) for ask, plan in zip(asks, plans, strict=True)}
        late = chain.policy.set_aside() if infos else Late()
        return RoundPlan(drafts, limits, late)

    def _is_awake(self, sequence: int) -> bool | None:
        """Whether the head keeps up with the text. None: it is wanted again, and will, before
        long; for that it has to see ordinary steps."""
        if self._mtp is None:
            return False
        listens = self._chain.hears(sequence, self._mtp)
        is_awake = self._mtp.n_pending(sequence) >= 0
        return None if listens and not is_awake else is_awake

    def _info(self, ask: DraftRequest, *, drafts: bool) -> PlanRequest:
        mtp, offers = self._mtp, []
        if mtp is not None and drafts and self._chain.may_draft(ask.sequence, mtp):
            offers.append(ModelOffer(mtp.name, mtp.longest))
        return PlanRequest(ask.sequence, ask.tokens, ask.max_draft, (), offers)

    def _limit(self, plan: Plan) -> DraftLimit:
        if self._mtp is None or not plan.model:
            return DraftLimit()
        p_min = max(self._mtp.p_min, plan.stop_below)
        return DraftLimit(min(plan.n_model, self._mtp.longest), p_min)

    def lend(self, sequence: int, last: int, room: int) -> DrafterHandover:
        assert self._mtp is not None, "somebody drafts"
        return self._mtp.lend(sequence, last, room)

    def give_back(
        self, sequence: int, n_cells: int, fresh: Sequence[int], hidden: Floats | None
    ) -> None:
        assert self._mtp is not None, "somebody drafts"
        self._mtp.give_back(sequence, n_cells, fresh, hidden)

    def tell(
        self, choice: RoundPlan, outcomes: Sequence[RoundOutcome], ms: tuple[float, float],
        n_rows: int, n_ctx: int,
    ) -> None:  # fmt: skip
        chain, policy, longest = self._chain, self._chain.policy, choice.longest
        drafting = [o for o in outcomes if choice.limits.get(o.sequence, DraftLimit()).length]
        with policy.of(choice.late):
            if drafting:
                n_pending = sum(o.n_fresh - 1 for o in drafting)
                policy.observe_draft(self.source, longest, len(drafting), ms[0], n_pending)
            policy.observe_step(n_rows, n_ctx, ms[1])
            for outcome in drafting:
                if outcome.draft.tokens:
                    policy.settle(outcome.sequence, outcome.draft, outcome.n_accepted)
                else:
                    policy.missed(outcome.sequence)
        for outcome in drafting:
            if outcome.draft.tokens:
                chain.tell_others(outcome.sequence, outcome.draft, outcome.n_accepted)
        chain.step_took(ms[1])
