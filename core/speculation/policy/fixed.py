"""`--spec-fixed`: always the longest draft of every drafter."""

from __future__ import annotations

from collections.abc import Sequence

from ..rounds import DraftPlan, PlanRequest, Policy, Round


class FixedPolicy(Policy):
    repeats = True

    def plan(self, requests: Sequence[PlanRequest]) -> Round:
        return Round(requests, [longest_plan(request) for request in requests])


def longest_plan(request: PlanRequest) -> DraftPlan:
    plan = DraftPlan()
    for i, draft in enumerate(request.cheap):
        if draft.tokens:
            plan.cheap, plan.n_cheap = i, min(len(draft.tokens), request.max_draft)
            break
    if request.networks:
        plan.network = request.networks[0].source
        plan.n_network = min(request.networks[0].max_draft, request.max_draft)
    return plan
