"""Activation and product of float rows, packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shim.machine import Machine
from support.packed_rows import empty_packed, unpack

from nextn.core.backend.layers import GateActivation
from nextn.core.backend.reference.mixture import gated
from nextn.cuda_kernels.gate_rows import gate_rows
from nextn.cuda_kernels.packed import PackedRows
from nextn.cuda_kernels.qmm import Activation as Kind

KINDS = {GateActivation.SILU: Kind.SILU, GateActivation.GELU: Kind.GELU}


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
    expected = gated(torch.from_numpy(rows), activation).numpy()
    found = unpack(made)
    assert np.abs(found[:, :width] - expected).max() < 1e-4 * np.abs(expected).max()
    assert not found[:, width:].any()


def test_rows_that_are_not_pairs_are_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="not gates and as many ups"):
        gate_rows(machine.launcher, np.zeros((1, 7), np.float32), 0, empty_packed(1, 3))
