"""Tokens a step of `suffix` and `ngram-mod` on the work of agents: no model runs, tokens count.

Every drafter sees the same texts and the same verification: a draft is accepted as far as it is
what is written next. Three policies decide how much of it is verified: all of it, and the
controller on two machines with known costs.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import cast

from support.simulated import GPU, TILES, Machine

from nextn.core import nano
from nextn.core.gguf.reader import open_gguf
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.composite import CompositeSpeculator
from nextn.core.speculation.draft import DraftRequest
from nextn.core.speculation.drafters.ngram_base import NgramDrafter
from nextn.core.speculation.drafters.ngram_chances import n_common
from nextn.core.speculation.drafters.ngram_match import MatchDrafter, match_rule
from nextn.core.speculation.drafters.suffix import SuffixDrafter
from nextn.core.speculation.interface import SequenceStart
from nextn.core.speculation.options import (
    AUTO_MOD,
    NGRAM_MOD,
    SUFFIX,
    NgramModSizes,
    SuffixSizes,
)
from nextn.core.speculation.policy.controller import Controller
from nextn.core.speculation.policy.costs import Cell, CostModel
from nextn.core.speculation.policy.fixed import FixedPolicy
from nextn.core.speculation.rounds import Policy
from nextn.core.state.store import SequenceState
from nextn.core.tokenizer import load_tokenizer

from .agent_traces import N_TRACES, TRACES
from .figures import Figure
from .setup import Setup

ASKED = 1.15
MAX_DRAFT = 64
Encoded = list[tuple[list[int], list[int]]]  # prompts and replies of one trace


def mod(sizes: NgramModSizes) -> Callable[[int], NgramDrafter]:
    return lambda _: MatchDrafter(match_rule(NGRAM_MOD, sizes), frozenset())


DRAFTERS: dict[str, Callable[[int], NgramDrafter]] = {
    SUFFIX: lambda n_vocab: SuffixDrafter(SuffixSizes(), frozenset(), n_vocab),
    "as in auto": mod(AUTO_MOD),
    **{f"match of {n}": mod(NgramModSizes(n, 1, MAX_DRAFT)) for n in (2, 3, 4, 8)},
    "usual sizes": mod(NgramModSizes()),
}


def controlled(machine: Machine) -> Callable[[], Policy]:
    def make() -> Policy:
        costs = CostModel()
        for n in (1, 2, 4, 5, 8, 12, 16, 32, MAX_DRAFT + 1):
            cell = costs.curve.cells[n] = Cell()
            cell.add(machine.step(n), 0, 0)
            cell.is_given = True
        costs.is_frozen = True
        return Controller(costs)

    return make


POLICIES: dict[str, Callable[[], Policy]] = {
    "whole drafts": FixedPolicy,
    "controller, CPU": controlled(TILES),
    "controller, GPU": controlled(GPU),
}


@dataclass
class Verified:
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def per_step(self) -> float:
        return self.tokens / self.steps


def agents(_: Setup) -> list[Figure]:
    figures = []
    tokenizer = load_tokenizer(open_gguf(nano.path()).metadata)
    for kind, make in TRACES.items():
        traces = [
            [
                (
                    tokenizer.encode(each.prompt, parse_special=False),
                    tokenizer.encode(each.reply, add_special=False, parse_special=False),
                )
                for each in make(i)
            ]
            for i in range(N_TRACES)
        ]
        for policy, make_policy in POLICIES.items():
            found = {
                name: verify(make_drafter, make_policy, traces, tokenizer.n_vocab)
                for name, make_drafter in DRAFTERS.items()
            }
            figures += compared(f"{kind}, {policy}", found)
    return figures


def compared(name: str, found: dict[str, Verified]) -> list[Figure]:
    detail = {each: asdict(counts) for each, counts in found.items()}
    own, others = found[SUFFIX].per_step, {**found}
    del others[SUFFIX]
    best = max(others, key=lambda each: others[each].per_step)
    return [
        Figure(f"{name}: suffix", own, "tokens/step", detail=detail | {"python": version()}),
        Figure(
            f"{name}: over ngram-mod as in auto", own / found["as in auto"].per_step, "x", ASKED
        ),
        Figure(f"{name}: over the best ({best})", own / others[best].per_step, "x", ASKED),
    ]


def verify(
    make_drafter: Callable[[int], NgramDrafter],
    make_policy: Callable[[], Policy],
    traces: Sequence[Encoded],
    n_vocab: int,
) -> Verified:
    counts = Verified()
    sampler = Sampler(SamplingParams(temperature=0.0), n_vocab=n_vocab)
    for trace in traces:
        speculator = CompositeSpeculator([make_drafter(n_vocab)], make_policy())
        for number, (prompt, reply) in enumerate(trace):
            text, at = prompt.copy(), 0
            speculator.begin(SequenceStart(number, text, cast(SequenceState, None)))
            while at < len(reply):
                (draft,) = speculator.propose([DraftRequest(number, text, MAX_DRAFT, sampler)])
                n = n_common(draft.tokens, reply[at:])
                if draft.tokens:
                    speculator.settle(number, n, mine=True)
                text += reply[at : at + n + 1]
                at = len(text) - len(prompt)
                counts.steps += 1
                counts.drafted += len(draft.tokens)
                counts.accepted += n
            counts.tokens += len(reply)
            speculator.end(number)
    return counts


def version() -> str:
    """The texts are those of this version's library."""
    return platform.python_version()
