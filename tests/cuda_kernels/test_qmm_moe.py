"""Mixtures of experts: routed, multiplied, weighted; against the reference, and row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from shim import sanitizer
from shim.machine import HostMachine, Machine
from support.experts import Case, Layer, Made
from support.packed_rows import empty_packed, pack, rows_of, same_packed, unpack
from support.sass import hot_loop, lane_instructions_per_weight

from nextn.core.backend.layers import Floats, GateActivation, Gating
from nextn.cuda_kernels.compile import Cubin
from nextn.cuda_kernels.kernel import Source
from nextn.cuda_kernels.moe_route import RANK_BITS
from nextn.cuda_kernels.qmm_moe import (
    KERNELS,
    Experts,
    MoeWorkspace,
    experts_gate_up,
    split_count,
)
from nextn.cuda_kernels.repack import FORMATS

CASES = {
    "softmax": Case(),
    "gated shared expert": Case(n_expert=32, n_used=8, shared="gated"),
    "shared expert of another format": Case(shared="plain", shared_form="Q8_0"),
    "split twice": Case(n_processors=40, width=768, inner=512, shared="gated"),
    "sigmoid": Case(gating=Gating.SIGMOID, bias=True, scale=2.5, activation=GateActivation.GELU),
    "softmax of the chosen": Case(
        gating=Gating.SOFTMAX_OF_CHOSEN, normalise=False, gate_up="Q8_0", down="Q8_0", inner=320
    ),
    "plain": Case(gate_up="BF16", down="BF16", inner=328, width=264, shared="gated"),
    "plain, halves": Case(gate_up="F16", down="F16", inner=264, activation=GateActivation.GELU),
    "all experts, scaled, odd width": Case(
        n_expert=4, n_used=4, width=480, inner=96, gate_up="Q8_0", down="Q8_0", scaled=True
    ),
}


def rows(layer: Layer, n: int, seed: int = 5) -> Floats:
    made: Floats = np.random.default_rng(seed).standard_normal((n, layer.case.width), np.float32)
    return made


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(machine: Machine, name: str) -> None:
    layer = Layer(CASES[name])
    a, x = rows(layer, 5), rows(layer, 5, seed=6)
    made = layer.run(machine, a).added_to(x)
    expected = layer.reference(a, x)
    assert np.linalg.norm(made - expected) < 2e-4 * np.linalg.norm(expected - x)


@pytest.mark.parametrize("name", CASES)
def test_each_product_by_itself(machine: Machine, name: str) -> None:
    """From the packed rows that it gets: float32 sums, and half a step of what is packed."""
    layer = Layer(CASES[name])
    a = rows(layer, 3)
    made = layer.run(machine, a)
    gated, parts = layer.by_pairs(made, a)
    step = np.repeat(made.inner.d, 256, axis=1)[:, : layer.case.inner]
    found = unpack(made.inner)[:, : layer.case.inner]
    assert (np.abs(found - gated) < 0.55 * step + 1e-5 * np.abs(gated)).all()
    assert np.linalg.norm(made.parts - parts) < 1e-6 * np.linalg.norm(parts)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_every_format(machine: Machine, form: str) -> None:
    layer = Layer(Case(gate_up=form, down=form, shared="plain"))
    a = rows(layer, 3)
    made = layer.run(machine, a)
    gated, parts = layer.by_pairs(made, a)
    step = np.repeat(made.inner.d, 256, axis=1)[:, : layer.case.inner]
    assert (np.abs(unpack(made.inner) - gated) < 0.55 * step + 1e-5 * np.abs(gated)).all()
    assert np.linalg.norm(made.parts - parts) < 1e-6 * np.linalg.norm(parts)


@pytest.mark.parametrize("bundle", [4, 8])
@pytest.mark.parametrize("n_rows", [1, 13, 37])
def test_many_rows_and_bundles(machine: Machine, n_rows: int, bundle: int) -> None:
    """Experts with more columns than a bundle, and with a ragged last one."""
    layer = Layer(Case(n_expert=4, n_used=2, shared="gated", width=256))
    a, x = rows(layer, n_rows), rows(layer, n_rows, seed=6)
    made = layer.run(machine, a, bundle)
    counts = np.bincount(made.routes.experts.reshape(-1), minlength=4)
    assert n_rows < 37 or counts.max() > 16
    expected = layer.reference(a, x)
    distance = np.linalg.norm(made.added_to(x) - expected)
    assert distance < 2e-4 * np.linalg.norm(expected - x)


def of_row(made: Made, row: int) -> tuple[list[Floats], bool]:
    """All that a row leaves, and whether it is whole."""
    per_row = made.parts.shape[1]
    inner = rows_of(made.inner, slice(row * per_row, (row + 1) * per_row))
    left = [made.parts[row], made.routes.weights[row], inner.q, inner.d, inner.s]
    return left, bool(np.isfinite(made.parts[row]).all())


IN_COMPANY = ["split twice", "plain", "gated shared expert"]
if sanitizer.is_wanted():
    IN_COMPANY = IN_COMPANY[:2]


@pytest.mark.parametrize("name", IN_COMPANY)
def test_a_row_has_its_bits_in_any_company(machine: Machine, name: str) -> None:
    layer = Layer(CASES[name])
    a = rows(layer, 11)
    a[7] = a[2]  # both ask the same experts
    whole = layer.run(machine, a, 4)
    assert np.array_equal(whole.parts[7], whole.parts[2])
    for chosen, bundle in (([0], 4), ([2], 8), ([10, 3], 4), ([9, 7, 1, 0, 4], 8)):
        some = layer.run(machine, a[chosen], bundle)
        for i, row in enumerate(chosen):
            alone, in_company = of_row(some, i), of_row(whole, row)
            assert alone[1]
            assert all(np.array_equal(p, q) for p, q in zip(alone[0], in_company[0], strict=True))


def test_a_broken_row_breaks_no_other(machine: Machine) -> None:
    layer = Layer(Case(shared="gated"))
    a = rows(layer, 6)
    whole = layer.run(machine, a)
    a[3, 100] = np.nan
    broken = layer.run(machine, a)
    assert np.isnan(broken.parts[3]).all()
    others = [0, 1, 2, 4, 5]
    assert np.array_equal(broken.parts[others], whole.parts[others])


def test_rows_that_do_not_live_are_not_multiplied(machine: Machine) -> None:
    layer = Layer(Case(shared="plain"))
    a = rows(layer, 6)
    whole, some = layer.run(machine, a), layer.run(machine, a, n_live=2)
    assert np.array_equal(some.parts[:2], whole.parts[:2])
    assert np.isnan(some.parts[2:]).all()
    none = layer.run(machine, a, n_live=0)
    assert np.isnan(none.parts).all()


def test_packed_rows_between_the_products_are_of_pairs(machine: Machine) -> None:
    """Row by row, rank by rank, as the lists say."""
    layer = Layer(Case())
    a = rows(layer, 3)
    made = layer.run(machine, a)
    pairs = np.sort(made.routes.columns) >> RANK_BITS
    assert pairs.tolist() == [0, 0, 1, 1, 2, 2]
    alone = layer.run(machine, a[1:2])
    assert same_packed(rows_of(made.inner, slice(2, 4)), alone.inner)


def test_k_is_split_by_shape_and_device_alone(machine: Machine) -> None:
    layer = Layer(CASES["split twice"])
    layer.run(machine, rows(layer, 1))
    stack = layer.down.put(machine)
    assert split_count(machine.launcher, stack, 2) in (1, 2)
    if not isinstance(machine, HostMachine):
        return
    machine.launcher.n_processors = 40
    assert split_count(machine.launcher, stack, 2) == 2
    assert split_count(machine.launcher, stack, 1) == 2  # there are no more blocks of K
    assert split_count(machine.launcher, stack, 8) == 1


def test_shapes_are_checked(machine: Machine) -> None:
    layer = Layer(Case(shared="plain", shared_form="Q8_0"))
    gate_up = layer.gate_up.put(machine)
    other = layer.shared_gate_up.put(machine)
    with pytest.raises(ValueError, match="neither routed nor shared"):
        Experts(None).checked()
    with pytest.raises(ValueError, match="launches of its own"):
        Experts(gate_up, other).checked()
    with pytest.raises(ValueError, match="weights of experts"):
        Experts(replace(gate_up, n_expert=7)).checked()
    routes = layer.routed(machine, rows(layer, 2))
    packed, space = pack(rows(layer, 3)), MoeWorkspace(np.zeros(0), np.zeros(0))
    with pytest.raises(ValueError, match="q of packed rows"):
        experts_gate_up(
            machine.launcher, packed, Experts(gate_up), routes, empty_packed(6, 256), space
        )
    with pytest.raises(ValueError, match="sums and arrivals, needed"):
        experts_gate_up(
            machine.launcher, rows_of(packed, slice(2)), Experts(gate_up), routes,
            empty_packed(6, 256), space,
        )  # fmt: skip


@pytest.mark.usefixtures("sass")
def test_instructions_per_weight(cubins: Mapping[tuple[Source, int], Cubin]) -> None:
    """The list and the gathering cost the inner loop nothing: 4.4 would be free at 4.3 TB/s."""
    budgets = {"qmm_moe_q4_k_4": (1, 2.0), "qmm_moe_q4_k_8": (2, 2.5), "qmm_moe_q8_0_4": (1, 1.5)}
    kernels = {kernel.name: kernel for kernel in KERNELS}
    for name, (tiles, budget) in budgets.items():
        loop = hot_loop(cubins[kernels[name].source, 90], name)
        assert lane_instructions_per_weight(loop, tiles) <= budget
        assert loop.kinds["local"] == 0
