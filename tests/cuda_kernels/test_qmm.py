"""Quantised products: how exact they are, and that a row's bits depend on nothing but the row."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from shim.machine import HostMachine, Machine
from support.packed_rows import pack, unpack
from support.quantised import Stored, normal_rows, put_packed, relative_error, stored, workspace

from specdec.cuda_kernels.qmm import WIDTHS, product
from specdec.cuda_kernels.repack import FORMATS

Floats = NDArray[np.float32]


def run(machine: Machine, weights: Stored, x: Floats, n_processors: int | None = None) -> Floats:
    if n_processors is not None and isinstance(machine, HostMachine):
        machine.launcher.n_processors = n_processors
    space = workspace(machine, len(x), len(weights.rows))
    y = machine.garbage((len(x), len(weights.rows)))
    product(machine.launcher, put_packed(machine, x), weights.matrix(machine), y, space)
    assert not machine.get(space.counters).any()
    made: Floats = machine.get(y)
    return made


@pytest.mark.parametrize("form", FORMATS)
def test_error_of_each_format(machine: Machine, form: str) -> None:
    width = 512 if FORMATS[form].block_size == 256 else 480
    weights, x = stored(form, 37, width), normal_rows(3, width)
    y, values = run(machine, weights, x, 1), weights.values
    rounded = unpack(pack(x))[:, :width]
    assert relative_error(y, rounded @ values.T) < 1e-6
    assert relative_error(y, x.astype(np.float64) @ values.T) < 1e-4
