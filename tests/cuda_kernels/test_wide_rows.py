"""Biases of products of many rows."""

from __future__ import annotations

import numpy as np
import pytest
from shim.machine import Machine

from nextn.cuda_kernels.wide_rows import add_bias


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
    rows = np.zeros((2, 8), np.float32)
    with pytest.raises(ValueError, match="have no room"):
        add_bias(machine.launcher, rows, np.zeros(9, np.float32))
