"""What trees of candidates could bring over chains, by what drafters know and what steps cost.

A drafter is led along the target's own text, and at every place says at which rank of its list it
has the token that the text goes on with. These ranks tell what any tree of up to `WIDTH` candidates
at each of `DEPTH` places would have had accepted, were its drafter run once for each place and not
for each candidate: a bound in favour of trees. Chains and trees are chosen by the chance of the
first token, in as many classes for both, so that tokens by time are the most.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import nextn.core
from nextn.core import nano
from nextn.core.backend.interface import NO_REQUEST, HostOutput
from nextn.core.backend.picking import UNSURE
from nextn.core.errors import NothingLeftError
from nextn.core.model_names import find_model
from nextn.core.runtime import Runtime
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.drafters import hidden_state
from nextn.core.speculation.options import EAGLE3, MTP, SpecOptions

from .figures import Figure
from .setup import Setup, Stepper
from .spec_runs import PLAIN, Task, Watching, fixed_mtp, new_engine, write
from .spec_workloads import DATA, tasks

DEPTH, WIDTH, MOST_ROWS = 6, 3, 15
CLASSES = 4  # of first tokens, by their chance
MATCHES, LONGEST = (0, 2, 4, 8), 32  # classes of copies, by the tokens that match
KINDS = ("code", "prose", "json")
TEMPERATURES = (0.0, 0.8)
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
ROUNDS, PAST, N_CTX = 15, 512, 1024


@dataclass
class Place:
    """Of a text: the chance of the drafter's first token, and at which rank it had each of the
    tokens that follow, given those before; `WIDTH` for none of the first. And how many tokens
    before the place occurred together earlier, and how many behind both places are the same."""

    at: int
    chance: float = 0.0
    ranks: list[int] = field(default_factory=list)
    matched: int = 0
    copied: int = 0

    @property
    def n_hits(self) -> int:
        """Tokens of the drafter's own chain that are right."""
        return next((i for i, rank in enumerate(self.ranks) if rank), len(self.ranks))


@dataclass(frozen=True)
class Costs:
    """In time of a plain step."""

    steps: Mapping[int, float]  # by rows
    draft: float  # of one place

    def round(self, n_candidates: float, depth: int) -> float:
        rows = sorted(self.steps)
        step = float(np.interp(1 + n_candidates, rows, [self.steps[n] for n in rows]))
        return step + depth * self.draft


# Measured on an H200 (docs/benchmarks/README.md): steps of the 27B, and rounds of 3 drafts at a
# length of 3.3 that make 2.85 times plain speed.
H200_STEPS = {1: 1.0, 4: 1.06, 8: 1.16, 16: 1.61}
H200_DRAFT = (3.3 / 2.85 - H200_STEPS[4]) / 3
ELSEWHERE = {
    "27B on an H200": Costs(H200_STEPS, H200_DRAFT),
    "rows for nothing": Costs({1: 1.0, 16: 1.0}, H200_DRAFT),
}


class RankingSampler(DraftSampler):
    """Leads the drafter along a text."""

    __slots__ = ("_at", "_places", "_script")

    def __init__(self, sampler: Sampler, script: Sequence[int], places: list[Place]) -> None:
        super().__init__(sampler)
        self.request = NO_REQUEST  # asked here, not by a kernel
        self._script, self._places, self._at = script, places, 0

    def restart(self, tokens: Sequence[int]) -> None:
        super().restart(tokens)
        self._at = len(tokens)
        self._places.append(Place(self._at))

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        if self._at >= len(self._script):
            return UNSURE
        token, place = self._script[self._at], self._places[-1]
        if not place.ranks:
            logits = output.logits[row].astype(np.float64)
            place.chance = float(1 / np.exp(logits - logits.max()).sum())
        place.ranks.append(self._rank(output.logits[row], token, position))
        self._at += 1
        return token

    def _rank(self, logits: NDArray[np.float32], token: int, position: int) -> int:
        left = logits.copy()
        for rank in range(WIDTH):
            try:
                picked = self.sampler.pick(left, self._history, position)
            except NothingLeftError:
                break
            if picked == token:
                return rank
            left[picked] = -np.inf
        return WIDTH


def trees(setup: Setup) -> list[Figure]:
    costs = {**_measured(setup), **ELSEWHERE}
    figures = []
    for name, draft in {MTP: [], EAGLE3: [DATA / "nano-eagle3.gguf"]}.items():
        spec = SpecOptions(types=(name,))
        with nextn.core.load(nano.path(), "cpu", spec=spec, draft=draft, n_ctx=N_CTX) as runtime:
            for temperature in TEMPERATURES:
                for kind in KINDS:
                    places = _read_places(runtime, name, kind, temperature)
                    label = f"{name}, {kind} at temperature {temperature:g}"
                    for at, cost in costs.items():
                        figures.append(_compare(f"{label}, {at}", places, cost))
                        figures.append(_compare_with_copies(f"{label}, {at}", places, cost))
    return figures


def _read_places(runtime: Runtime, name: str, kind: str, temperature: float) -> list[Place]:
    """Of some texts. Every draft is rejected, so that there is one at each place."""
    plain = new_engine(runtime, PLAIN)
    options = SpecOptions(
        types=(name,), draft_n_max=DEPTH, fixed=True, draft_vocab="full",
        synth_rates=(0.0,) * DEPTH,
    )  # fmt: skip
    rejecting = new_engine(runtime, options)
    found: list[Place] = []
    for seed, task in enumerate(tasks(runtime, kind)):
        owner, places = str(seed), list[Place]()
        text = write(plain, task, temperature, seed, owner).tokens
        script = [*task.prompt, *text]

        def leading(
            sampler: Sampler,
            script: list[int] = script,
            places: list[Place] = places,
            **_: object,
        ) -> RankingSampler:
            return RankingSampler(sampler, script, places)

        with mock.patch.object(hidden_state, "make_draft_sampler", leading):
            again = write(rejecting, task, temperature, seed, owner)
        if again.tokens != text:
            raise AssertionError(f"{name}: the text with drafts is another")
        for place in places:
            place.matched, place.copied = _copy(script, place.at)
        found += [place for place in places if len(place.ranks) == DEPTH]
    return found


def _copy(script: Sequence[int], at: int) -> tuple[int, int]:
    """The longest match of what is before a place with what was before an earlier one, the last of
    these, and how many tokens follow alike."""
    best, source = 0, 0
    for earlier in range(at - 1, 0, -1):
        n = _alike(script, range(earlier - 1, -1, -1), range(at - 1, -1, -1))
        if n > best:
            best, source = n, earlier
    n_alike = _alike(script, range(source, at), range(at, len(script))) if best else 0
    return best, n_alike


def _alike(script: Sequence[int], some: range, others: range) -> int:
    most = min(len(some), len(others), LONGEST)
    return next((n for n in range(most) if script[some[n]] != script[others[n]]), most)


def _measured(setup: Setup) -> dict[str, Costs]:
    """Of a model of 0.8B and of SmolLM2 here. For SmolLM2 there is no drafter: its share of a plain
    step is taken to be that of the MTP head of the former."""
    path = setup.file("Q4_K_M-mtp")
    watched = Watching()
    with nextn.core.load(path, "cpu", n_ctx=N_CTX, threads=setup.threads) as runtime:
        options = fixed_mtp(DEPTH, synth_len=3.0, draft_vocab="8192")
        write(new_engine(runtime, options, policy=watched), Task([1] * 16, 160), 0, 0, "")
    draft_ms = statistics.median(watched.drafts[DEPTH]) / DEPTH
    found: dict[str, Costs] = {}
    share = 0.0
    for label, file in (("0.8B here", path), ("SmolLM2 here", find_model("smollm2"))):
        stepper = Stepper(file, setup.threads)
        times = stepper.interleaved([stepper.step(n, PAST) for n in ROWS], ROUNDS)
        ms = [statistics.median(each) for each in times]
        steps = {n: each / ms[0] for n, each in zip(ROWS, ms, strict=True)}
        share = share or draft_ms / ms[0]
        found[label] = Costs(steps, share)
    return found


@dataclass(frozen=True)
class Shape:
    """A chain or a tree: what it brings of the places of one class, and what it costs."""

    tokens: float
    cost: float


def _compare(label: str, places: Sequence[Place], costs: Costs) -> Figure:
    classes = _by_chance(places)
    chain, tree = (
        _best_rate([_trees(each, costs, widest) for each in classes]) for widest in (1, WIDTH)
    )
    detail = {"chain": chain, "tree": tree, "places": len(places), "draft": costs.draft}
    return Figure(f"{label}: best tree over best chain", tree / chain, "x", detail=detail)


def _compare_with_copies(label: str, places: Sequence[Place], costs: Costs) -> Figure:
    """The drafter's chain and a copy of what followed earlier: the better one, or both at once."""
    classes = [
        found
        for each in _by_chance(places)
        for low, high in pairwise((*MATCHES, LONGEST + 1))
        if (found := [place for place in each if low <= place.matched < high])
    ]
    sizes = [len(each) / len(places) for each in classes]
    one, both = (
        _best_rate([_pairs(each, costs, both=both) for each in classes], sizes)
        for both in (False, True)
    )
    detail = {"one": one, "both": both, "places": len(places)}
    return Figure(f"{label}: chain and copy over one of them", both / one, "x", detail=detail)


def _by_chance(places: Sequence[Place]) -> list[list[Place]]:
    order = sorted(places, key=lambda place: place.chance)
    ends = [i * len(order) // CLASSES for i in range(CLASSES + 1)]
    return [order[start:end] for start, end in pairwise(ends)]


def _trees(places: Sequence[Place], costs: Costs, widest: int) -> list[Shape]:
    """No draft; and for each depth the likeliest candidates, up to each number of rows."""
    counts = Counter(
        tuple(place.ranks[:depth]) for place in places for depth in range(1, DEPTH + 1)
    )
    chances = {
        path: n / len(places) for path, n in counts.items() if max(path) < widest
    }  # a path is no likelier than its beginning
    shapes = [Shape(1.0, costs.round(0, 0))]
    for depth in range(1, DEPTH + 1):
        likeliest = sorted((c for path, c in chances.items() if len(path) <= depth), reverse=True)
        for n in range(1, min(MOST_ROWS, len(likeliest)) + 1):
            shapes.append(Shape(1 + sum(likeliest[:n]), costs.round(n, depth)))
    return shapes


def _pairs(places: Sequence[Place], costs: Costs, *, both: bool) -> list[Shape]:
    """Of a chain of each depth and a copy of each length. What is the same in both is one row."""
    hits = np.array([place.n_hits for place in places])
    copied = np.array([place.copied for place in places])
    shapes = []
    for depth in range(DEPTH + 1):
        for length in range(MOST_ROWS + 1 - depth):
            if both or not depth or not length:
                parts = np.minimum(hits, depth), np.minimum(copied, length)
                n_rows = float(depth + length - np.minimum(*parts).mean())
                tokens = float(1 + np.maximum(*parts).mean())
                shapes.append(Shape(tokens, costs.round(n_rows, depth)))
    return shapes


def _best_rate(classes: Sequence[Sequence[Shape]], sizes: Sequence[float] = ()) -> float:
    """Tokens in the time of a plain step, with one shape for each class (Dinkelbach's method)."""
    rate, sizes = 1.0, sizes or [1.0] * len(classes)
    for _ in range(50):
        chosen = [max(shapes, key=lambda s: s.tokens - rate * s.cost) for shapes in classes]
        tokens = sum(n * s.tokens for n, s in zip(sizes, chosen, strict=True))
        rate = tokens / sum(n * s.cost for n, s in zip(sizes, chosen, strict=True))
    return rate
