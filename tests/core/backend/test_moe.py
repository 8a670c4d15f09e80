"""The mixture of experts alone: every way to route, few and many rows, CPU against reference."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace
from support.blocks import random_blocks

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Ops, Output, State, StateRoom, Taps
from nextn.core.backend.layers import (
    Floats,
    Gate,
    GateActivation,
    Gating,
    Matrix,
    MatrixPart,
    Moe,
    Norm,
    SharedExpert,
    StateShape,
)
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor

WIDTH, N_ROWS = 64, 70


@dataclass(frozen=True)
class Case:
    n_expert: int = 8
    n_used: int = 2
    inner: int = 32
    type_name: str = "F32"
    gating: Gating = Gating.SOFTMAX
    normalise: bool = True
    scale: float = 1.0
    bias: bool = False
    activation: GateActivation = GateActivation.SILU
    shared: bool = False
    shared_gate: bool = False
    limit: float = 0.0
    biases: bool = False  # of the router and of each expert
    groups: tuple[int, int] = (1, 1)  # all, and those used
    expert_scale: bool = False
    adds: bool = True
    routed_apart: bool = False  # by other rows than the experts read
    weighs_inputs: bool = False


CASES = {
    "softmax": Case(),
    "all experts": Case(n_used=8),
    "one expert": Case(n_expert=1, n_used=1),
    "many experts": Case(n_expert=100, n_used=10),
    "not normalised": Case(normalise=False, scale=2.5),
    "sigmoid with bias": Case(gating=Gating.SIGMOID, bias=True, scale=1.8),
    "softmax of the chosen": Case(gating=Gating.SOFTMAX_OF_CHOSEN, normalise=False),
    "shared": Case(shared=True),
    "shared with gate": Case(shared=True, shared_gate=True),
    "gelu": Case(activation=GateActivation.GELU),
    "quantised": Case(type_name="Q8_0", shared=True, shared_gate=True),
    "odd inner width": Case(inner=20),
    "limited": Case(limit=0.3, shared=True),
    "limited gelu": Case(limit=0.3, activation=GateActivation.GELU, inner=20),
    "biases": Case(biases=True, shared=True),
    "gpt-oss": Case(
        inner=64,
        type_name="Q8_0",
        gating=Gating.SOFTMAX_OF_CHOSEN,
        normalise=False,
        activation=GateActivation.OAI,
        limit=0.5,
        biases=True,
        n_used=4,
    ),
    "gpt-oss, floats": Case(
        inner=36,
        gating=Gating.SOFTMAX_OF_CHOSEN,
        normalise=False,
        activation=GateActivation.OAI,
        limit=0.5,
        biases=True,
    ),
    "groups": Case(n_expert=12, groups=(4, 2), gating=Gating.SIGMOID, bias=True, n_used=4),
    "one of many groups": Case(n_expert=64, groups=(8, 1), n_used=6),
    "groups of one": Case(n_expert=8, groups=(8, 3), n_used=3),
    "scaled experts": Case(expert_scale=True),
    "added to nothing": Case(adds=False, shared=True),
    "weighed inputs": Case(
        gating=Gating.SIGMOID_OF_CHOSEN, normalise=False, weighs_inputs=True, shared=True
    ),
    "weighed inputs, quantised": Case(
        gating=Gating.SIGMOID_OF_CHOSEN,
        normalise=False,
        weighs_inputs=True,
        type_name="Q4_1",
        n_used=3,
    ),
    "weighed inputs, odd inner width": Case(
        gating=Gating.SIGMOID_OF_CHOSEN, normalise=False, weighs_inputs=True, inner=20, n_used=1
    ),
    "routed by other rows": Case(routed_apart=True, adds=False),
}


class MoeAlone:
    def __init__(self, case: Case, device: str) -> None:
        self.rng = np.random.default_rng(5)
        self.backend = create_backend(device)
        shared = None
        if case.shared:
            shared = SharedExpert(
                self.matrix(2 * case.inner, WIDTH, case.type_name),
                self.matrix(WIDTH, case.inner, case.type_name),
                self.matrix(1, WIDTH, "F32") if case.shared_gate else None,
                Gate(case.activation, case.limit),
            )
        self.moe = Moe(
            gate_inp=self.matrix(case.n_expert, WIDTH, "F32", biased=case.biases),
            gate_up=self.matrix(
                2 * case.inner, WIDTH, case.type_name, case.n_expert, biased=case.biases
            ),
            down=self.matrix(WIDTH, case.inner, case.type_name, case.n_expert, biased=case.biases),
            n_used=case.n_used,
            gating=case.gating,
            normalise=case.normalise,
            scale=case.scale,
            probs_bias=self.vector(case.n_expert) if case.bias else None,
            gate=Gate(case.activation, case.limit),
            shared=shared,
            n_groups=case.groups[0],
            n_groups_used=case.groups[1],
            expert_scale=self.vector(case.n_expert) if case.expert_scale else None,
            weighs_inputs=case.weighs_inputs,
        )
        self.case = case
        self.norm = Norm(self.backend.vector(np.ones(WIDTH, np.float32)), 1e-6)
        self.router_norm = Norm(self.vector(WIDTH), 1e-6)
        state = self.backend.new_state(
            StateShape(()), StateRoom(n_pages=1, page_len=16, n_slots=1, window=1)
        )
        self.run = self.backend.compile(self.forward, state, max_rows=N_ROWS)

    def vector(self, n: int) -> object:
        return self.backend.vector(self.rng.standard_normal(n).astype(np.float32))

    def matrix(
        self, n_out: int, n_in: int, type_name: str, n_expert: int = 0, *, biased: bool = False
    ) -> Matrix:
        """Stored blocks whose values have about unit rows."""
        rows = random_blocks(type_name, n_out * (n_expert or 1), n_in, int(self.rng.integers(99)))
        if type_name == "F32":
            rows = (rows.view(np.float32) * n_in**-0.5).view(np.uint8)
        shape = (n_expert, n_out, n_in) if n_expert else (n_out, n_in)
        data = np.ascontiguousarray(rows).reshape(-1)
        bias = self.rng.standard_normal(shape[:-1]).astype(np.float32) if biased else None
        tensor = Tensor("t", shape, find_format(type_name), data)
        return self.backend.matrix([MatrixPart(tensor, bias)])

    def forward(self, ops: Ops, step: Step, state: State, taps: Taps) -> Output:
        x = ops.given_rows(step, WIDTH)
        a = ops.norm(x, self.norm)
        routed_by = ops.norm(x, self.router_norm) if self.case.routed_apart else None
        x = ops.moe(a, self.moe, x if self.case.adds else None, routed_by)
        return Output(ops.norm_rows(x, self.norm))

    def rows(self, rows: Floats) -> Floats:
        n = len(rows)
        return self.run(build_step([StepPart([0] * n, 0, [0], n_out=n)], rows)).logits.copy()


@pytest.mark.parametrize("name", CASES)
def test_cpu_equals_reference_and_itself_in_any_company(name: str) -> None:
    ours, reference = MoeAlone(CASES[name], "cpu"), MoeAlone(CASES[name], "torch")
    rows = np.random.default_rng(6).standard_normal((N_ROWS, WIDTH)).astype(np.float32)
    whole = ours.rows(rows)
    near = 1e-5 if CASES[name].type_name == "F32" else 0.1
    np.testing.assert_allclose(whole, reference.rows(rows), atol=near)
    for first, last in ((0, 1), (1, 4), (4, 13), (13, 14), (14, 70)):
        assert np.array_equal(ours.rows(rows[first:last]), whole[first:last])


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_it_matters_what_is_weighed(device: str) -> None:
    case = CASES["weighed inputs"]
    rows = np.random.default_rng(6).standard_normal((3, WIDTH)).astype(np.float32)
    inputs, outputs = (
        MoeAlone(dataclasses.replace(case, weighs_inputs=weighs), device).rows(rows)
        for weighs in (True, False)
    )
    assert np.abs(inputs - outputs).max() > 1e-2


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_equal_scores_go_to_the_lower_expert(device: str) -> None:
    """A router of zeros: all experts tie, the first ones are asked, and only they matter."""
    alone = MoeAlone(Case(n_expert=6, n_used=2), device)
    zeros = Tensor("r", (6, WIDTH), find_format("F32"), np.zeros(6 * WIDTH * 4, np.uint8))
    router = alone.backend.matrix([MatrixPart(zeros)])
    rows = np.random.default_rng(7).standard_normal((3, WIDTH)).astype(np.float32)
    ties = _with_router(alone, router, np.zeros(6))
    told = _with_router(alone, router, np.array([2.0, 1.0, 0, 0, 0, 0]))
    assert np.array_equal(ties.rows(rows), told.rows(rows))


def _with_router(alone: MoeAlone, router: Matrix, bias: object) -> MoeAlone:
    made = object.__new__(MoeAlone)
    made.__dict__.update(alone.__dict__)
    vector = alone.backend.vector(np.asarray(bias, np.float32))
    made.moe = replace(alone.moe, gate_inp=router, probs_bias=vector)
    state = alone.backend.new_state(
        StateShape(()), StateRoom(n_pages=1, page_len=16, n_slots=1, window=1)
    )
    made.run = alone.backend.compile(made.forward, state, max_rows=N_ROWS)
    return made
