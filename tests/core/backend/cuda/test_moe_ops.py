"""Mixtures as families have them, steps and prompts: near the reference, and the same bits however
cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.host_device import use_for_cuda
from support.ops_alone import PROMPTS, Bench, OpsAlone, relative_error

from nextn.core.backend.interface import Ops, Rows
from nextn.core.backend.layers import (
    SILU_GATE,
    Floats,
    Gate,
    GateActivation,
    Gating,
    Moe,
    Norm,
    SharedExpert,
)
from nextn.core.backend.step import Step
from nextn.core.errors import ConfigError

WIDTH, INNER, N_EXPERT, N_ROWS = 64, 32, 8, 24


@dataclass(frozen=True)
class Case:
    kind: str = "F16"
    gate: Gate = SILU_GATE
    shared: Gate | None = None
    shared_inner: int = INNER
    shared_gate: bool = False
    groups: tuple[int, int] = (1, 1)
    expert_scale: bool = False
    alone: bool = False  # add_to=None
    routed_apart: bool = False
    biased: bool = False  # gates are then large enough for limits
    weighs_inputs: bool = False


CASES = {
    "limits": Case(gate=Gate(limit=0.4), shared=Gate(limit=0.2)),
    "limits, tiles": Case("Q8_0", Gate(GateActivation.GELU, 0.3), Gate(limit=0.5)),
    "one limit for all": Case("Q8_0", Gate(limit=0.5), Gate(limit=0.5)),
    "a wider shared expert": Case("Q8_0", shared=Gate(), shared_inner=2 * INNER, alone=True),
    "a wider plain shared expert": Case(shared=Gate(), shared_inner=96, shared_gate=True),
    "gpt-oss": Case("Q8_0", Gate(GateActivation.OAI, 7.0), biased=True),
    "gpt-oss, plain": Case(gate=Gate(GateActivation.OAI, 7.0), biased=True),
    "weighed inputs": Case("Q8_0", shared=Gate(), weighs_inputs=True),
    "weighed inputs, plain": Case(shared=Gate(), weighs_inputs=True),
    "groups, apart": Case(groups=(4, 2), expert_scale=True, alone=True, routed_apart=True),
}


def mixture(bench: Bench, case: Case) -> Moe:
    def matrix(n_out: int, n_in: int, name: str, *stack: int, kind: str = case.kind) -> Any:
        part = bench.part(*stack, n_out, n_in, kind=kind, name=f"blk.0.{name}.weight")
        if case.biased:
            bias = 6 * bench.rng.standard_normal((*stack, n_out))
            part = replace(part, bias=bias.astype(np.float32))
        return bench.backend.matrix([part])

    shared = None
    if case.shared is not None:
        inner = case.shared_inner
        shared = SharedExpert(
            matrix(2 * inner, WIDTH, "ffn_gate_up_shexp"),
            matrix(WIDTH, inner, "ffn_down_shexp"),
            bench.matrix(1, WIDTH, name="blk.0.ffn_gate_inp_shexp.weight")
            if case.shared_gate
            else None,
            case.shared,
        )
    return Moe(
        gate_inp=matrix(N_EXPERT, WIDTH, "ffn_gate_inp", kind="F32"),
        gate_up=matrix(2 * INNER, WIDTH, "ffn_gate_up_exps", N_EXPERT),
        down=matrix(WIDTH, INNER, "ffn_down_exps", N_EXPERT),
        n_used=2,
        gating=Gating.SIGMOID_OF_CHOSEN if case.weighs_inputs else Gating.SIGMOID,
        normalise=not case.weighs_inputs,
        weighs_inputs=case.weighs_inputs,
        gate=case.gate,
        shared=shared,
        n_groups=case.groups[0],
        n_groups_used=case.groups[1],
        expert_scale=bench.vector(N_EXPERT) if case.expert_scale else None,
    )


def routing(bench: Bench, case: Case) -> OpsAlone:
    layer, norm = mixture(bench, case), Norm(bench.vector(WIDTH), 1e-6)
    router_norm = Norm(bench.vector(WIDTH), 1e-6)
    after = Norm(bench.vector(WIDTH), 1e-6)

    def body(ops: Ops, step: Step, state: Any) -> Rows:
        x = ops.keep(ops.given_rows(step, WIDTH))
        a = ops.norm(x, norm)
        by = ops.norm(x, router_norm) if case.routed_apart else None
        if case.alone:
            return ops.add_norm(x, ops.moe(a, layer, None, by), after)
        return ops.norm_rows(ops.moe(a, layer, x, by), after)

    return OpsAlone(bench, body)


def rows() -> Floats:
    return np.random.default_rng(4).standard_normal((N_ROWS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_near_the_reference(name: str, shim: None) -> None:
    ours, reference = (routing(Bench(device), CASES[name]) for device in ("cuda", "torch"))
    given = rows()[:7]
    made = ours(given, [7])
    assert relative_error(made, reference(given, [7])) < 5e-4
    assert np.array_equal(ours(given, [1, 4, 2]), made)


@pytest.mark.parametrize("name", CASES)
def test_prompts_are_near_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch, prompts=PROMPTS)
    ours, reference = (routing(Bench(device), CASES[name]) for device in ("cuda", "torch"))
    assert relative_error(ours(rows(), [N_ROWS]), reference(rows(), [N_ROWS])) < 0.01


def test_sums_of_experts_alone_can_be_normed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads them next."""

    def body_of(bench: Bench) -> Callable[[Ops, Step, Any], Rows]:
        layer, norm = mixture(bench, Case()), Norm(bench.vector(WIDTH), 1e-6)

        def body(ops: Ops, step: Step, state: Any) -> Rows:
            a = ops.norm(ops.given_rows(step, WIDTH), norm)
            return ops.norm_rows(ops.moe(a, layer, None), norm)

        return body

    use_for_cuda(monkeypatch)
    ours, reference = (OpsAlone(b, body_of(b)) for b in (Bench("cuda"), Bench("torch")))
    assert relative_error(ours(rows()[:3], [3]), reference(rows()[:3], [3])) < 5e-4


def test_another_limit_than_that_of_gpt_oss_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch)
    case = Case(gate=Gate(GateActivation.OAI, 6.0))
    with pytest.raises(ConfigError, match=r"have the limit 7.0, not 6.0; use --device cpu"):
        routing(Bench("cuda"), case)(rows()[:1], [1])


def test_what_cannot_be_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch)
    case = dataclasses.replace(CASES["a wider plain shared expert"], routed_apart=True)
    with pytest.raises(ConfigError, match=r"gate of a shared expert.*--device cpu"):
        routing(Bench("cuda"), case)(rows()[:1], [1])
