"""A decision holds for several rounds where planning takes long beside a step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.scripted import END, Oracle, alone, drain, made, make_engine, params

from nextn.core.speculation.composite import CompositeSpeculator
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.policy.controller import Controller
from nextn.core.speculation.policy.costs import CostModel
from nextn.core.speculation.request_spec import RequestSpec
from nextn.core.speculation.rounds import DraftPlan, NetworkOffer, PlanRequest, Policy, Round

# Their texts do not end by themselves.
PROMPTS = [
    prompt
    for prompt in ([first, 3, 5] for first in range(END))
    if END not in alone(prompt, params(41), make_engine())
][:3]
PROMPT = PROMPTS[0]


class Network(Oracle):
    name, is_network = "oracle", True


class Silent(Oracle):
    """An n-gram drafter that never finds anything."""

    name = "ngram-mod"

    def _draft(self, ask: DraftRequest) -> Draft:
        self.n_drafts += 1
        return Draft()


class Holding(Policy):
    """Three tokens in each round; a decision holds for `n_held` more."""

    def __init__(self, n_held: int, length: int = 3) -> None:
        self.n_held, self.length, self.planned = n_held, length, list[list[int]]()

    def plan(self, requests: Sequence[PlanRequest]) -> Round:
        self.planned.append([request.sequence for request in requests])
        length = self.length
        plans = [
            DraftPlan(network="oracle", n_network=min(length, request.max_draft))
            if length and request.networks
            else DraftPlan()
            for request in requests
        ]
        return Round(requests, plans)

    def rounds_held(self, decided: Round, ms: float) -> int:
        return self.n_held


@pytest.mark.parametrize("n_held", [0, 1, 4])
def test_a_network_drafts_in_all_rounds(n_held: int) -> None:
    how = params(41)
    want = alone(PROMPT, how, make_engine())
    network, silent, policy = Network(length=3), Silent(), Holding(n_held)
    network.texts = {0: PROMPT + want}
    engine = make_engine(drafter=CompositeSpeculator([silent, network], policy))
    sequence = engine.add(PROMPT, how)
    drain(engine)
    assert made(sequence) == want
    n_rounds = network.n_drafts
    assert n_rounds == 10  # of 40 tokens after the first
    assert len(policy.planned) == silent.n_drafts == -(-n_rounds // (1 + n_held))
    assert sequence.stats.draft_n_accepted == 30


def test_no_draft_is_asked_for_while_that_was_decided() -> None:
    policy, silent = Holding(4, length=0), Silent()
    engine = make_engine(drafter=CompositeSpeculator([silent, Network()], policy))
    engine.add(PROMPT, params(40))
    drain(engine)
    assert len(policy.planned) == silent.n_drafts == 8


def test_other_sequences_are_another_decision() -> None:
    """One comes, one that wants no network comes, one ends."""
    how = [params(30), params(12), params(8, spec=RequestSpec(types=("ngram-mod",)))]
    want = [alone(*each, make_engine()) for each in zip(PROMPTS, how, strict=True)]
    network, policy = Network(length=3), Holding(1000)
    network.texts = {i: PROMPTS[i] + text for i, text in enumerate(want)}
    engine = make_engine(drafter=CompositeSpeculator([Silent(), network], policy))
    sequences = []
    for i, each in enumerate(how):
        sequences.append(engine.add(PROMPTS[i], each))
        engine.step()
        engine.step()
    drain(engine)
    assert [made(sequence) for sequence in sequences] == want
    assert sequences[2].stats.draft_n == 0
    kinds = [
        planned for i, planned in enumerate(policy.planned) if planned not in policy.planned[:i]
    ]
    assert kinds[0] == [0]
    assert [0, 1] in kinds


def test_one_that_joins_does_not_wait_for_the_end_of_a_pause() -> None:
    """Its prompt takes several steps, in which the other is planned alone."""
    policy = Holding(1000, length=0)
    engine = make_engine(drafter=CompositeSpeculator([Silent(), Network()], policy))
    engine.add(PROMPTS[0], params(40))
    engine.step()
    engine.step()
    engine.add([*PROMPTS[1]] * 6, params(4))  # in pieces of 8
    drain(engine)
    assert [0, 1] in policy.planned
    assert len(policy.planned) <= 5


def offer(tokens: int = 50, cheap: Sequence[Draft] = ()) -> PlanRequest:
    return PlanRequest(0, range(tokens), 3, cheap, [NetworkOffer("mtp", 3)])


def held_after(ms: float, plan: DraftPlan, request: PlanRequest) -> int:
    """By a controller that knows that a step takes 10 ms, and a draft 1 ms."""
    controller = Controller()
    controller.begin(0)
    for n_rows in (1, 2, 3, 4):
        for _ in range(4):
            controller.observe_step(None, n_rows, 50, 10.0)
    for _ in range(4):
        decided = controller.plan([request])
        for n in (1, 2, 3):
            controller.observe_draft(decided, "mtp", n, 1, 1.0)
    return controller.rounds_held(Round([request], [plan]), ms)


def test_the_longer_planning_takes_the_longer_a_decision_holds() -> None:
    drafting = DraftPlan(network="mtp", n_network=2)
    for plan, longest in ((DraftPlan(), 256), (drafting, 16)):
        held = [held_after(ms, plan, offer(cheap=[Draft()])) for ms in (0.001, 0.1, 1.0, 1e9)]
        assert held[0] == 0
        assert held == sorted(held)
        assert held[-1] == longest


def test_until_a_network_is_tried_again_nothing_is_asked() -> None:
    """Where no n-gram drafter waits for a repetition."""
    request = offer()
    controller = Controller()
    controller.begin(0)
    n_planned = n_rounds = 0
    n_held, decided = 0, Round()
    while n_rounds < 2000:  # nothing is ever accepted
        if n_held and not decided.has_drafts:
            n_held, n_rounds = n_held - 1, n_rounds + 1
            continue
        decided = controller.plan([request])
        n_drafted = decided.plans[0].n_network
        if n_drafted:
            controller.observe_draft(decided, "mtp", n_drafted, 1, 1.0)
        controller.observe_step(decided, 1 + n_drafted, 50, 10.0)
        controller.settle(decided, 0, Draft([1] * n_drafted, ["mtp"] * n_drafted), 0)
        n_held = controller.rounds_held(decided, 0.1)
        n_planned, n_rounds = n_planned + 1, n_rounds + 1
    assert n_planned < 120


@pytest.mark.parametrize(
    "plan",
    [DraftPlan(network="mtp", n_network=1, is_probe=True),
     DraftPlan(cheap=0, n_cheap=4)],
)  # fmt: skip
def test_drafts_of_probes_and_ngrams_are_decided_anew(plan: DraftPlan) -> None:
    controller = Controller()
    controller.begin(0)
    controller.plan([offer()])
    assert controller.rounds_held(Round([offer()], [plan]), 1000.0) == 0


def test_who_wants_drafts_in_any_case_is_always_asked() -> None:
    request = offer(cheap=[Draft()])._replace(is_fixed=True)
    assert held_after(1e9, DraftPlan(network="mtp", n_network=3), request) == 0
    assert held_after(1e9, DraftPlan(), request) == 0


@pytest.mark.parametrize(("ms", "n_held"), [(0.5, 0), (1.5, 1), (100.0, 2)])
def test_a_plain_step_is_timed_once_steps_are_steady(ms: float, n_held: int) -> None:
    assert held_after(ms, DraftPlan(is_probe=True), offer()) == n_held


def test_with_costs_of_a_file_nothing_depends_on_time() -> None:
    costs = CostModel()
    costs.observe_step(1, 50, 10.0)
    costs.is_frozen = True
    controller = Controller(costs)
    controller.begin(0)
    assert controller.rounds_held(controller.plan([offer()]), 1000.0) == 0
