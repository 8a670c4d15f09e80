"""Activation and product of float rows, packed or as bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shim.machine import Machine
from support.packed_rows import empty_packed, unpack

from nextn.core.backend.layers import Gate, GateActivation
from nextn.core.backend.reference.mixture import gated
from nextn.cuda_kernels.gate_rows import gate_rows
from nextn.cuda_kernels.packed import PackedRows
from nextn.cuda_kernels.qmm import Activation as Kind
from nextn.cuda_kernels.qmm import gate_code

UNTOUCHED = 0x4242
KINDS = {
    GateActivation.SILU: Kind.SILU,
    GateActivation.GELU: Kind.GELU,
    GateActivation.OAI: Kind.OAI,
}
LIMITS = {GateActivation.SILU: 0.7, GateActivation.GELU: 0.7, GateActivation.OAI: 7.0}


@pytest.mark.parametrize("activation", list(GateActivation))
@pytest.mark.parametrize(("n_rows", "width"), [(1, 256), (3, 96), (2, 2300)])
def test_equals_the_reference(
    machine: Machine, activation: GateActivation, n_rows: int, width: int
) -> None:
    rows = np.random.default_rng(width).standard_normal((n_rows, 2 * width), np.float32)
    out = empty_packed(n_rows, width)
    there = PackedRows(machine.put(out.q), machine.put(out.d), machine.put(out.s))
    gate_rows(machine.launcher, machine.put(rows), KINDS[activation], there)
    made = PackedRows(*(machine.get(array) for array in (there.q, there.d, there.s)))
    gates, ups = torch.from_numpy(rows).chunk(2, dim=-1)
    expected = gated(gates, ups, Gate(activation)).numpy()
    found = unpack(made)
    assert np.abs(found[:, :width] - expected).max() < 1e-4 * np.abs(expected).max()
    assert not found[:, width:].any()


@pytest.mark.parametrize("activation", list(GateActivation))
@pytest.mark.parametrize(
    ("width", "wide", "column"), [(64, 64, 0), (1028, 2000, 16), (30, 61, 7), (8, 13, 4)]
)
def test_gates_and_ups_become_bfloat16(
    machine: Machine, activation: GateActivation, width: int, wide: int, column: int
) -> None:
    rows = np.random.default_rng(width).standard_normal((3, 2 * width), np.float32)
    out = machine.put(np.full((3, wide), UNTOUCHED, np.uint16))
    gate_rows(machine.launcher, machine.put(rows), KINDS[activation], halves=out, column=column)
    made = machine.get(out)
    gates, ups = torch.from_numpy(rows).chunk(2, dim=-1)
    expected = gated(gates, ups, Gate(activation))
    found = torch.from_numpy(made[:, column : column + width].astype(np.int16)).view(torch.bfloat16)
    assert torch.allclose(found.float(), expected, rtol=2**-8, atol=1e-6)
    beside = np.delete(made, np.s_[column : column + width], axis=1)
    assert (beside == UNTOUCHED).all()


@pytest.mark.parametrize("activation", list(GateActivation))
@pytest.mark.parametrize("column", [0, 5, 8])
def test_limits_and_ups_in_wider_rows(
    machine: Machine, activation: GateActivation, column: int
) -> None:
    rng = np.random.default_rng(column)
    gates, ups = (rng.standard_normal((3, width), np.float32) for width in (40, 60))
    gate = Gate(activation, limit=LIMITS[activation])
    gates, ups = gates * np.float32(gate.limit), ups * np.float32(gate.limit)
    assert (gates > gate.limit).any()
    gates[1, 3], ups[2, column + 4] = np.nan, np.nan
    out = machine.put(np.zeros((3, 40), np.uint16))
    code = gate_code(KINDS[activation], gate.limit)
    gate_rows(
        machine.launcher, machine.put(gates), code, halves=out, ups=(machine.put(ups), column)
    )
    found = torch.from_numpy(machine.get(out).astype(np.int16)).view(torch.bfloat16)
    wanted = torch.from_numpy(ups[:, column : column + 40].copy())
    expected = gated(torch.from_numpy(gates), wanted, gate)
    assert torch.allclose(found.float(), expected, rtol=2**-8, atol=1e-6, equal_nan=True)
    assert torch.isnan(expected).sum() == 2


def test_rows_that_are_not_pairs_are_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="not gates and as many ups"):
        gate_rows(machine.launcher, np.zeros((1, 7), np.float32), 0, empty_packed(1, 3))
    rows, out = np.zeros((2, 8), np.float32), np.zeros((2, 4), np.uint16)
    with pytest.raises(ValueError, match="have no room"):
        gate_rows(machine.launcher, rows, 0, halves=out, column=1)
    with pytest.raises(ValueError, match="have no 8 from 1 on"):
        gate_rows(machine.launcher, rows, 0, halves=out, ups=(rows, 1))
