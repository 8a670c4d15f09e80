"""Activations and biases between products of many rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shim.machine import Machine

from nextn.core.backend.layers import GateActivation
from nextn.core.backend.reference.mixture import gated
from nextn.cuda_kernels.qmm import Activation as Kind
from nextn.cuda_kernels.wide_rows import add_bias, gate_halves

KINDS = {GateActivation.SILU: Kind.SILU, GateActivation.GELU: Kind.GELU}
UNTOUCHED = 0x4242


@pytest.mark.parametrize("activation", list(GateActivation))
@pytest.mark.parametrize(
    ("width", "wide", "column"), [(64, 64, 0), (1028, 2000, 16), (30, 61, 7), (8, 13, 4)]
)
def test_gates_and_ups_become_bfloat16(
    machine: Machine, activation: GateActivation, width: int, wide: int, column: int
) -> None:
    rows = np.random.default_rng(width).standard_normal((3, 2 * width), np.float32)
    out = machine.put(np.full((3, wide), UNTOUCHED, np.uint16))
    gate_halves(machine.launcher, machine.put(rows), KINDS[activation], out, column=column)
    made = machine.get(out)
    expected = gated(torch.from_numpy(rows), activation)
    found = torch.from_numpy(made[:, column : column + width].astype(np.int16)).view(torch.bfloat16)
    assert torch.allclose(found.float(), expected, rtol=2**-8, atol=1e-6)
    beside = np.delete(made, np.s_[column : column + width], axis=1)
    assert (beside == UNTOUCHED).all()


@pytest.mark.parametrize(("width", "wide", "column"), [(300, 300, 0), (5, 9, 3)])
def test_a_bias_is_added_to_its_columns(
    machine: Machine, width: int, wide: int, column: int
) -> None:
    rng = np.random.default_rng(wide)
    rows, bias = rng.standard_normal((4, wide), np.float32), rng.standard_normal(width, np.float32)
    there = machine.put(rows)
    add_bias(machine.launcher, there, machine.put(bias), column=column)
    rows[:, column : column + width] += bias
    assert np.array_equal(machine.get(there), rows)


def test_what_does_not_fit_is_refused(machine: Machine) -> None:
    rows, out = np.zeros((2, 8), np.float32), np.zeros((2, 4), np.uint16)
    with pytest.raises(ValueError, match="not gates and as many ups"):
        gate_halves(machine.launcher, np.zeros((2, 7), np.float32), 0, out)
    with pytest.raises(ValueError, match="have no room"):
        gate_halves(machine.launcher, rows, 0, out, column=1)
    with pytest.raises(ValueError, match="have no room"):
        add_bias(machine.launcher, rows, np.zeros(9, np.float32))
