"""Routing: the reference's choice, ties and NaN included, and the lists of experts."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shim.machine import Machine
from support.packed_rows import pack, unpack

from nextn.core.backend.layers import Floats, Gating, Moe
from nextn.core.backend.reference.mixture import route
from nextn.cuda_kernels.moe_route import (
    RANK_BITS,
    ExpertChoice,
    Router,
    Routes,
    moe_route,
    routes_shapes,
)
from nextn.cuda_kernels.packed import PackedRows


@dataclass(frozen=True)
class Case:
    n_rows: int = 5
    n_expert: int = 32
    width: int = 256
    n_used: int = 4
    gating: Gating = Gating.SOFTMAX
    normalise: bool = True
    scale: float = 1.0
    bias: bool = False  # of the router, and of the choice
    shared: str = ""  # or "plain", or "gated"
    packed: bool = False
    bundle: int = 4
    groups: tuple[int, int] = (1, 1)
    expert_scale: bool = False


CASES = {
    "softmax": Case(),
    "one row": Case(n_rows=1, n_expert=8, n_used=2),
    "all experts": Case(n_expert=8, n_used=8),
    "one expert": Case(n_expert=1, n_used=1),
    "16 of 512": Case(n_rows=3, n_expert=512, n_used=16, shared="gated"),
    "not normalised": Case(normalise=False, scale=2.5, width=520, shared="plain"),
    "sigmoid": Case(gating=Gating.SIGMOID, bias=True, scale=1.8, n_rows=9),
    "softmax of the chosen": Case(gating=Gating.SOFTMAX_OF_CHOSEN, normalise=False, n_rows=17),
    "groups": Case(n_expert=256, n_used=8, groups=(8, 4), gating=Gating.SIGMOID, bias=True),
    "groups of one": Case(n_expert=8, n_used=2, groups=(8, 3), packed=True),
    "groups with too few experts": Case(n_expert=12, n_used=6, groups=(4, 1), shared="gated"),
    "many rows in groups": Case(n_rows=66, n_expert=64, groups=(32, 2), expert_scale=True),
    "scaled experts": Case(n_expert=16, expert_scale=True, scale=1.5),
    "packed": Case(packed=True, n_rows=10, n_expert=33, shared="gated"),
    "many rows": Case(n_rows=70, n_expert=9, n_used=3, shared="gated", bundle=8),
    "bundles of few": Case(n_rows=37, n_expert=9, n_used=3, shared="gated"),
    "many packed rows": Case(n_rows=66, bias=True, gating=Gating.SIGMOID, packed=True),
}


@dataclass(frozen=True)
class Problem:
    x: PackedRows | Floats
    router: Router
    choice: ExpertChoice
    bundle: int = 4

    @property
    def floats(self) -> Floats:
        if isinstance(self.x, PackedRows):
            return unpack(self.x).astype(np.float32)[:, : self.router.weights.shape[1]]
        return self.x

    def expected(self) -> tuple[NDArray[np.int64], Floats]:
        """By the reference, from float32 logits of its own."""
        logits = torch.from_numpy(self.floats) @ torch.from_numpy(self.router.weights).T
        if self.router.bias is not None:
            logits += torch.from_numpy(self.router.bias)
        return self.chosen_from(logits.numpy())

    def chosen_from(self, logits: Floats) -> tuple[NDArray[np.int64], Floats]:
        how = self.choice
        bias = None if how.probs_bias is None else torch.from_numpy(how.probs_bias)
        gating = Gating(how.gating)
        scales = None if how.expert_scale is None else torch.from_numpy(how.expert_scale)
        layer = Moe(
            None,
            None,
            None,
            how.n_used,
            gating,
            how.normalise,
            how.scale,
            probs_bias=bias,
            n_groups=how.n_groups,
            n_groups_used=how.n_groups_used,
            expert_scale=scales,
        )
        experts, weights = route(torch.from_numpy(logits), layer)
        return experts.numpy(), weights.numpy()


def make(case: Case, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Floats:
        return rng.standard_normal(shape).astype(np.float32)

    rows = normal(case.n_rows, case.width)
    weights = normal(case.n_expert, case.width) * np.float32(case.width**-0.5)
    router = Router(
        weights,
        normal(case.n_expert) if case.bias else None,
        normal(case.width) * np.float32(case.width**-0.5) if case.shared == "gated" else None,
    )
    bias = normal(case.n_expert) * np.float32(0.2) if case.bias else None
    scales = np.abs(normal(case.n_expert)) if case.expert_scale else None
    choice = ExpertChoice(
        case.n_used,
        case.gating.value,
        case.normalise,
        case.scale,
        bias,
        bool(case.shared),
        *case.groups,
        scales,
    )
    return Problem(pack(rows) if case.packed else rows, router, choice, case.bundle)


def empty_routes(machine: Machine, problem: Problem, n_rows: int) -> Routes:
    """Full of what no kernel writes."""
    shapes = routes_shapes(n_rows, len(problem.router.weights), problem.choice, problem.bundle)
    floats = {"logits", "weights"}
    arrays = {
        name: machine.put(np.full(shape, -7, np.float32 if name in floats else np.int32))
        for name, shape in shapes.items()
    }
    arrays["tickets"] = machine.put(np.zeros(1, np.int32))
    return Routes(**arrays, bundle=problem.bundle)


def put(machine: Machine, problem: Problem) -> Problem:
    """All arrays where the machine wants them."""

    def each(array: Floats | None) -> Floats | None:
        return None if array is None else machine.put(array)

    x, router = problem.x, problem.router
    rows: PackedRows | Floats = (
        PackedRows(machine.put(x.q), machine.put(x.d), machine.put(x.s))
        if isinstance(x, PackedRows)
        else machine.put(x)
    )
    moved = Router(each(router.weights), each(router.bias), each(router.shared_gate))
    how = problem.choice
    choice = replace(how, probs_bias=each(how.probs_bias), expert_scale=each(how.expert_scale))
    return Problem(rows, moved, choice, problem.bundle)


def run(machine: Machine, problem: Problem, n_live: int | None = None) -> Routes:
    routes = empty_routes(machine, problem, len(problem.floats))
    live = None if n_live is None else machine.put(np.array([n_live], np.int32))
    there = put(machine, problem)
    moe_route(machine.launcher, there.x, there.router, there.choice, routes, n_live=live)
    names = [field.name for field in fields(Routes) if field.name != "bundle"]
    made = {name: machine.get(getattr(routes, name)) for name in names}
    assert made["tickets"][0] == 0
    return Routes(**made, bundle=routes.bundle)


def check_lists(routes: Routes, n_live: int) -> None:
    """Against experts: who has which rows, in pieces of at most a bundle."""
    expected = []
    chosen, shared_id = routes.experts[:n_live], routes.logits.shape[1] - 1
    by_expert = [(int(e), np.argwhere(chosen == e)) for e in np.unique(chosen)]
    if routes.has_shared and n_live:
        pairs = np.stack([np.arange(n_live), np.full(n_live, routes.n_used)], axis=1)
        by_expert.append((shared_id, pairs))
    for expert, pairs in by_expert:
        for first in range(0, len(pairs), routes.bundle):
            rows, ranks = pairs[first : first + routes.bundle].T
            expected.append((expert, (rows << RANK_BITS | ranks).tolist()))
    n_routed, n = routes.n_bundles.tolist()
    assert n_routed == sum(expert != shared_id for expert, _ in expected)
    assert routes.starts[0] == 0
    spans = zip(routes.starts[:n], routes.starts[1 : n + 1], strict=True)
    columns = [routes.columns[first:last].tolist() for first, last in spans]
    assert list(zip(routes.ids[:n].tolist(), columns, strict=True)) == expected


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(machine: Machine, name: str) -> None:
    problem = make(CASES[name])
    n_used, n_rows = problem.choice.n_used, len(problem.floats)
    routes = run(machine, problem)
    experts, weights = problem.expected()
    assert np.array_equal(routes.experts, experts)
    np.testing.assert_allclose(routes.weights[:, :n_used], weights, rtol=3e-6, atol=1e-7)
    check_lists(routes, n_rows)
    if CASES[name].shared == "plain":
        assert (routes.weights[:, n_used] == 1).all()
    if CASES[name].shared == "gated":
        gate = problem.router.shared_gate
        assert gate is not None
        logits = problem.floats.astype(np.float64) @ gate
        np.testing.assert_allclose(routes.weights[:, n_used], 1 / (1 + np.exp(-logits)), rtol=1e-6)


@pytest.mark.parametrize("groups", [(1, 1), (5, 2)])
@pytest.mark.parametrize("gating", Gating)
def test_equal_scores_go_to_the_lower_expert(
    machine: Machine, gating: Gating, groups: tuple[int, int]
) -> None:
    """Experts in fours that are the same, and a row of zeros for which all are."""
    problem = make(Case(n_expert=40, n_used=6, gating=gating, n_rows=6, groups=groups))
    problem.router.weights[:] = np.repeat(problem.router.weights[:10], 4, axis=0)
    assert isinstance(problem.x, np.ndarray)
    problem.x[2] = 0
    problem.x[4] = problem.x[3]
    routes = run(machine, problem)
    experts, weights = problem.chosen_from(routes.logits[:, :40].copy())
    assert routes.experts[2].tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(routes.experts, experts)
    assert np.array_equal(routes.weights[3], routes.weights[4])
    np.testing.assert_allclose(routes.weights, weights, rtol=3e-6)
    check_lists(routes, 6)


@pytest.mark.parametrize("groups", [(1, 1), (5, 2)])
@pytest.mark.parametrize("gating", Gating)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_comes_out_as_in_the_reference(
    machine: Machine, gating: Gating, value: float, groups: tuple[int, int]
) -> None:
    problem = make(Case(n_expert=20, gating=gating, bias=True, n_rows=4, groups=groups))
    assert problem.router.bias is not None
    problem.router.bias[[3, 11]] = value
    routes = run(machine, problem)
    experts, weights = problem.chosen_from(routes.logits[:, :20].copy())
    assert np.array_equal(routes.experts, experts)
    np.testing.assert_allclose(routes.weights, weights, rtol=3e-6)
    check_lists(routes, 4)


def test_vanishing_probabilities_are_not_divided_by_nothing(machine: Machine) -> None:
    problem = make(Case(gating=Gating.SIGMOID, bias=True))
    assert problem.router.bias is not None
    problem.router.bias[:] -= 40
    routes = run(machine, problem)
    np.testing.assert_allclose(routes.weights, problem.expected()[1], rtol=1e-5)
    assert 0 < routes.weights.max() < 1e-10


@pytest.mark.parametrize("name", ["packed", "sigmoid", "many rows", "16 of 512", "groups"])
def test_a_row_is_routed_alike_in_any_company(machine: Machine, name: str) -> None:
    problem = make(replace(CASES[name], packed=False))
    whole = run(machine, problem)
    for row in (0, len(problem.floats) - 1):
        alone = run(machine, replace(problem, x=problem.floats[row : row + 1].copy()))
        for field in ("logits", "experts", "weights"):
            ours, theirs = getattr(alone, field)[0], getattr(whole, field)[row]
            assert np.array_equal(ours[:-1], theirs[:-1])
        check_lists(alone, 1)


@pytest.mark.parametrize(("n_rows", "n_live"), [(5, 0), (5, 1), (5, 7), (70, 3)])
def test_rows_that_do_not_live_ask_nobody(machine: Machine, n_live: int, n_rows: int) -> None:
    problem = make(Case(n_rows=n_rows, shared="plain"))
    routes, whole = run(machine, problem, n_live=n_live), run(machine, problem)
    n = min(n_live, n_rows)
    assert np.array_equal(routes.experts[:n], whole.experts[:n])
    assert (routes.experts[n:] == -7).all()
    check_lists(routes, n)


def test_shapes_are_checked(machine: Machine) -> None:
    problem = make(Case(n_rows=2))
    routes = empty_routes(machine, problem, 2)
    faults = [
        (replace(problem.choice, n_used=17), "17 of 32 experts"),
        (replace(problem.choice, gating=5), "gating 5"),
        (replace(problem.choice, n_groups=5), "1 of 5 groups of 32 experts"),
        (replace(problem.choice, n_used=3), "experts: shape"),
        (replace(problem.choice, has_shared=True), "weights: shape"),
        (replace(problem.choice, probs_bias=np.zeros(3, np.float32)), "probs_bias: shape"),
    ]
    for choice, message in faults:
        with pytest.raises(ValueError, match=message):
            moe_route(machine.launcher, problem.x, problem.router, choice, routes)
