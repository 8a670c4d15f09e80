"""Texts with known acceptance and machines with known costs, for policies that choose drafts.

A text is its tokens 0, 1, 2, …; bits say at which of them a model's draft is right, and where an
n-gram draft begins and how far it is right. So every policy meets the same text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nextn.core.speculation.draft import Draft
from nextn.core.speculation.rounds import DraftPlan, NetworkOffer, PlanRequest, Policy, Round
from nextn.core.speculation.splice import splice

MODEL, NGRAM = "mtp", "ngram-mod"
N_MAX = 16
CATCH_UP = 0.05  # of a drafted token: rows without logits, many at once
N_TRIAL = 16  # rows that are read for a trial


@dataclass(frozen=True)
class Machine:
    """Times in plain steps."""

    name: str
    step: Callable[[int], float]
    per_token: float
    per_call: float = 0.0
    per_context: float = 0.0  # of a plain step, per token
    planning: float = 0.0

    def step_ms(self, n_rows: int, n_ctx: int) -> float:
        return self.step(n_rows) * (1 + self.per_context * n_ctx)

    def draft_ms(self, n_tokens: int, n_sequences: int) -> float:
        wide = 1 + 0.05 * (n_sequences - 1)
        return (self.per_call + self.per_token * n_tokens) * wide if n_tokens else 0.0


def staircase(n_rows: int) -> float:
    """A CPU whose kernels have 1, 4, 8 and 16 rows."""
    whole, left = divmod(n_rows, 16)
    ms = (
        0.0 if left == 0 else 1.0 if left == 1 else 1.25 if left <= 4 else 2.2 if left <= 8 else 4.3
    )
    return 4.3 * whole + ms if n_rows > 16 else ms or 4.3


def between(*known: tuple[int, float]) -> Callable[[int], float]:
    """Times of steps by their rows, with straight lines between those that are known."""

    def step(n_rows: int) -> float:
        for (n, ms), (further, more) in pairwise(known):
            if n_rows <= further:
                return ms + (more - ms) * (n_rows - n) / (further - n)
        return known[-1][1] * n_rows / known[-1][0]

    return step


# A model of 0.8B and 4-bit weights on two Zen 4 cores; the same later, and with a DFlash drafter,
# whose drafts are one pass each.
tiles = between((1, 0.75), (4, 1.0), (5, 1.5), (8, 1.55), (12, 2.1), (16, 2.6), (64, 10.4))
rows = between((1, 1.0), (2, 1.07), (4, 1.2), (6, 1.39), (7, 1.61), (8, 1.64), (9, 2.1), (16, 3.0))
CPU = Machine("cpu", staircase, 0.14)
TILES = Machine("tiles", tiles, 0.03, 0.03)
GPU = Machine("gpu", lambda n: 1 + 0.015 * (n - 1), 0.06, 0.04)
BLOCKS = Machine("blocks", rows, 0.02, 0.19)
# A model of 8 MB: planning takes as long as a plain step.
TINY = Machine("tiny", lambda n: 1 + 0.1 * (n - 1), 0.15, 0.1, planning=1.0)
MOE = Machine("moe", lambda n: 1 + 0.6 * (n - 1), 0.14)
MACHINES = (CPU, GPU, MOE)


@dataclass
class SimText:
    """`right[i]`: a model's draft has token i right. `echo[i]`: an n-gram draft made at i is
    right for so many tokens; -1: there is none. `chances[i]`: what the model believes of i."""

    right: list[bool]
    echo: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    echo_length: int = 24

    def model_draft(self, at: int, n: int, stop_below: float = 0.0) -> Draft:
        for i in range(at, at + n if self.chances and stop_below else at):
            if self.chances[i] < stop_below:
                n = i - at
                break
        tokens = [i if self.right[i] else -1 - i for i in range(at, at + n)]
        return Draft(tokens, [MODEL] * n, chances=self.chances[at : at + n])

    def cheap_draft(self, at: int) -> Draft:
        if not self.echo or self.echo[at] < 0:
            return Draft()
        n = self.echo[at]
        tokens = [i if i < at + n else -100_000 - i for i in range(at, at + self.echo_length)]
        return Draft(tokens, [NGRAM] * len(tokens))


Process = Callable[[random.Random, int], SimText]


def iid(p: float) -> Process:
    return lambda noise, n: SimText([noise.random() < p for _ in range(n)])


def bursts(p_in: float, p_out: float, stay: float) -> Process:
    def make(noise: random.Random, n: int) -> SimText:
        right, inside = [], False
        for _ in range(n):
            if noise.random() > stay:
                inside = not inside
            right.append(noise.random() < (p_in if inside else p_out))
        return SimText(right)

    return make


def phases(rates: Sequence[float], length: int) -> Process:
    return lambda noise, n: SimText(
        [noise.random() < rates[i // length % len(rates)] for i in range(n)]
    )


def with_chances(spread: float = 0.3, mean: float = 0.6) -> Process:
    """The model knows where it may be wrong."""

    def make(noise: random.Random, n: int) -> SimText:
        chances = [min(max(noise.gauss(mean, spread), 0.02), 0.98) for _ in range(n)]
        return SimText([noise.random() < c for c in chances], chances=chances)

    return make


def echoes(p: float, every: int, length: int, false_rate: float = 0.1) -> Process:
    """Stretches that an n-gram knows, and wrong proposals elsewhere."""

    def make(noise: random.Random, n: int) -> SimText:
        right = [noise.random() < p for _ in range(n)]
        echo, end = [], 0
        for i in range(n):
            if i >= end and i >= every and i % every == 0:
                end = i + length + noise.randrange(length)
            if i < end:
                echo.append(end - i)
            else:
                echo.append(0 if noise.random() < false_rate else -1)
        return SimText(right, echo)

    return make


@dataclass
class Run:
    tokens: int = 0
    ms: float = 0.0
    rounds: int = 0
    drafted: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.ms


class Simulation:
    """Rounds of one or more texts under a policy. Timings may be disturbed; what counts is not."""

    def __init__(self, machine: Machine, texts: Sequence[SimText], *, outliers: float = 0.0,
                 jitter: float = 0.02, seed: int = 0, uses_model: bool = True,
                 first: float = 1.0) -> None:  # fmt: skip
        """`first`: how much longer than later ones the first draft takes, and, in part, the first
        step of each number of rows."""
        self.machine, self.texts = machine, texts
        self._first_draft, self._first_step, self._widths = first, first**0.4, set[int]()
        self._held, self._n_held = Round(), 0
        self._noise = random.Random(seed)
        self._outliers, self._jitter, self._uses_model = outliers, jitter, uses_model

    def run(self, policy: Policy, n_tokens: int) -> Run:
        """Until the texts together have so many tokens; none ends before."""
        run = Run()
        at = [0] * len(self.texts)
        for i in range(len(at)):
            policy.begin(i)
        pending = [0] * len(at)
        while run.tokens < n_tokens:
            self._round(policy, at, pending, run)
        return run

    def _round(self, policy: Policy, at: list[int], pending: list[int], run: Run) -> None:
        networks = (N_MAX,) if self._uses_model else ()
        requests = [
            PlanRequest(
                i,
                range(at[i]),
                64,
                [self.texts[i].cheap_draft(at[i])],
                [NetworkOffer(MODEL, n, pending[i], N_TRIAL) for n in networks],
            )
            for i in range(len(at))
        ]
        decided, ms = self._decision(policy, requests)
        drafts = [
            self._draft(at[request.sequence], plan, request)
            for plan, request in zip(decided.plans, requests, strict=True)
        ]
        ms += self._draft_time(policy, decided, drafts, pending)
        n_rows = len(at) + sum(len(draft.tokens) for draft in drafts)
        step = self.machine.step_ms(n_rows, sum(at))
        seen = self._disturbed(step) * (1.0 if n_rows in self._widths else self._first_step)
        self._widths.add(n_rows)
        policy.observe_step(decided, n_rows, sum(at), seen)
        run.ms += ms + step
        run.rounds += 1
        for i, draft in enumerate(drafts):
            n = 0
            while n < len(draft.tokens) and draft.tokens[n] == at[i] + n:
                n += 1
            policy.settle(decided, i, draft, n)
            at[i] += n + 1
            run.tokens += n + 1
            run.drafted += len(draft.tokens)

    def _decision(self, policy: Policy, requests: list[PlanRequest]) -> tuple[Round, float]:
        """And the time that it took."""
        if self._n_held > 0:
            self._n_held -= 1
            has_drafts = self._held.has_drafts
            held = Round(requests, [DraftPlan() for _ in requests])
            return policy.repeat(requests, self._held) if has_drafts else held, 0.0
        self._held = policy.plan(requests)
        ms = self.machine.planning
        self._n_held = policy.rounds_held(self._held, ms) if ms else 0
        return self._held, ms

    def _draft(self, at: int, plan: DraftPlan, request: PlanRequest) -> Draft:
        cheap = request.cheap[plan.cheap].shortened(plan.n_cheap) if plan.n_cheap else Draft()
        if not plan.network:
            return cheap
        made = self.texts[request.sequence].model_draft(at, plan.n_network, plan.stop_below)
        return splice(cheap, made, request.max_draft)

    def _draft_time(
        self, policy: Policy, decided: Round, drafts: Sequence[Draft], pending: list[int]
    ) -> float:
        # A drafter that stops early has computed the token it stops at.
        lengths = [
            min(draft.sources.count(MODEL) + 1, plan.n_network) if plan.network else 0
            for plan, draft in zip(decided.plans, drafts, strict=True)
        ]
        count, depth = sum(n > 0 for n in lengths), max(lengths)
        n_read = 0
        for i, (n, plan) in enumerate(zip(lengths, decided.plans, strict=True)):
            if n:
                n_read += min(pending[i], N_TRIAL) if plan.is_trial else pending[i]
            pending[i] = 0 if n else pending[i] + 1
        ms = self.machine.draft_ms(depth, count) + CATCH_UP * self.machine.per_token * n_read
        if depth:
            seen, self._first_draft = self._first_draft * self._disturbed(ms), 1.0
            policy.observe_draft(decided, MODEL, depth, count, seen, n_read)
        return ms

    def _disturbed(self, ms: float) -> float:
        ms *= 1 + self._jitter * self._noise.random()
        return 3 * ms if self._noise.random() < self._outliers else ms


class FixedLengths(Policy):
    """Always so many tokens: cheap ones if there are any, else a model's."""

    def __init__(self, n_model: int, n_cheap: int = 0) -> None:
        self.n_model, self.n_cheap = n_model, n_cheap

    def plan(self, requests: Sequence[PlanRequest]) -> Round:
        plans = []
        for request in requests:
            n = min(self.n_cheap, len(request.cheap[0].tokens)) if request.cheap else 0
            if n:
                plans.append(DraftPlan(cheap=0, n_cheap=n))
            elif self.n_model and request.networks:
                plans.append(DraftPlan(network=MODEL, n_network=self.n_model))
            else:
                plans.append(DraftPlan())
        return Round(requests, plans)


def best_fixed(
    simulation: Simulation, n_tokens: int, cheap: Sequence[int] = (0,)
) -> tuple[Run, str]:
    found = []
    for n_cheap in cheap:
        for n in range(N_MAX + 1):
            found.append((simulation.run(FixedLengths(n, n_cheap), n_tokens), f"{n}/{n_cheap}"))
    return max(found, key=lambda entry: entry[0].rate)
