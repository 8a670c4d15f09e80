"""Convolutions over the rows of sequences: the kernel against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shim.machine import Machine

from nextn.core.backend.layers import DynamicConvolution
from nextn.core.backend.reference.reference_ops import ReferenceOps
from nextn.core.backend.step import StepPart, build_step
from nextn.cuda_kernels.convolve_rows import convolve_rows


@pytest.mark.parametrize(("width", "group", "kernel"), [(96, 32, 3), (300, 4, 5), (520, 520, 1)])
def test_equals_the_reference(machine: Machine, width: int, group: int, kernel: int) -> None:
    """Of sequences of 1, 7 and 2 rows, and a row that belongs to none."""
    rng, lengths, first = np.random.default_rng(width), (1, 7, 2), 3
    n, n_factors = sum(lengths), first + kernel * (width // group)
    x = rng.standard_normal((n + 1, width), np.float32)
    factors = rng.standard_normal((n + 1, n_factors), np.float32)
    base = rng.standard_normal((kernel, width), np.float32)
    step = build_step([StepPart([0] * rows, 0, [0]) for rows in lengths])
    out = machine.put(np.full_like(x, np.nan))
    rows, taps, base_there, starts = map(machine.put, (x, factors, base, step.starts))
    convolve_rows(machine.launcher, rows, taps, base_there, starts, out, group=group, first=first)
    conv = DynamicConvolution(kernel, group, torch.from_numpy(base), first)
    ops = ReferenceOps(torch.device("cpu"), torch.float32)
    want = ops.convolve(torch.from_numpy(x[:n]), torch.from_numpy(factors[:n]), conv, step)
    made = machine.get(out)
    np.testing.assert_allclose(made[:n], want.numpy(), rtol=1e-5, atol=1e-5)
    assert np.isnan(made[n]).all()


def test_shapes_that_do_not_fit(machine: Machine) -> None:
    x, base, starts = (
        np.zeros((2, 12), np.float32),
        np.zeros((3, 12), np.float32),
        np.zeros(2, "i4"),
    )
    factors = np.zeros((2, 8), np.float32)
    rows, taps, base_there, where = map(machine.put, (x, factors, base, starts))
    for group, message in ((5, "no groups of 5"), (4, "2 rows of 8 factors")):
        with pytest.raises(ValueError, match=message):
            convolve_rows(machine.launcher, rows, taps, base_there, where, rows, group=group)
