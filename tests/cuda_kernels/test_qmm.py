"""Quantised products: how exact they are, and that a row's bits depend on nothing but the row."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from shim import sanitizer
from shim.machine import HostMachine, Machine
from support.blocks import HALVES
from support.packed_rows import pack, unpack
from support.quantised import Stored, normal_rows, put_packed, relative_error, stored, workspace

from nextn.cuda_kernels.dequant import take_rows
from nextn.cuda_kernels.packed import PackedRows
from nextn.cuda_kernels.qmm import Workspace, product
from nextn.cuda_kernels.repack import FORMATS

Floats = NDArray[np.float32]
FEW = (
    "Q4_K",
    "Q6_K",
    "Q8_0",
    "MXFP4",
    "IQ4_NL",
    "Q2_K",
    "NVFP4",
)  # one of each way to decode and to scale
FORMS = FEW if sanitizer.is_wanted() else tuple(FORMATS)


def run(machine: Machine, weights: Stored, x: Floats) -> Floats:
    space = workspace(machine, len(x), len(weights.rows))
    y = machine.garbage((len(x), len(weights.rows)))
    product(machine.launcher, put_packed(machine, x), weights.matrix(machine), y, space)
    assert not machine.get(space.counters).any(), "the next launch needs zeros"
    made: Floats = machine.get(y)
    return made


def with_processors(machine: Machine, n: int) -> Machine:
    """A block takes many units when there are few."""
    if isinstance(machine, HostMachine):
        machine.launcher.n_processors = n
    return machine


@pytest.mark.parametrize("form", FORMS)
def test_error_of_each_format(machine: Machine, form: str) -> None:
    width = {32: 480, 64: 448, 256: 512}[FORMATS[form].block_size]
    weights, x = stored(form, 37, width), normal_rows(3, width)
    y, values = run(with_processors(machine, 1), weights, x), weights.values
    rounded = unpack(pack(x))[:, :width]
    assert relative_error(y, rounded @ values.T) < 1e-6
    assert relative_error(y, x.astype(np.float64) @ values.T) < 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_extreme_codes_do_not_overflow(machine: Machine, form: str) -> None:
    """All bits set, or none, against the largest steps of one sign."""
    x = np.ones((2, 256), np.float32)
    x[1] = -1
    for byte in (0x00, 0x77, 0x7F, 0x80, 0x88, 0xF0, 0xFF):
        weights = stored(form, 16, 256)
        scales = weights.rows.reshape(16, -1, FORMATS[form].block_bytes)
        codes = scales.copy()
        codes[...] = byte
        for at in (272, 274) if form == "I8_K" else HALVES.get(form, ()):
            codes[..., at : at + 2] = scales[..., at : at + 2]
        if form == "MXFP4":
            codes[..., 0] = 120
        extreme = Stored(form, 256, codes.reshape(16, -1))
        y = run(machine, extreme, x)
        exact = x.astype(np.float64) @ extreme.values.T
        assert np.allclose(y, exact, rtol=2e-6, atol=1e-3 * np.abs(exact).max()), hex(byte)


@pytest.mark.parametrize("form", ["MXFP4", "NVFP4"])
@pytest.mark.parametrize("tokens", [3, 7, 13])
def test_smallest_scales(machine: Machine, form: str, tokens: int) -> None:
    """Weights that are subnormal floats, or scales that have no leading bit, lose nothing."""
    n_scales, block, most = {"MXFP4": (1, 17, 3), "NVFP4": (4, 36, 15)}[form]
    weights = stored(form, 40, 512)
    heads = weights.rows.reshape(40, -1, block)[..., :n_scales]
    heads[...] = np.random.default_rng(3).integers(0, most + 1, heads.shape)
    x = normal_rows(tokens, 512) * np.float32(2.0**100 if form == "MXFP4" else 1)
    y = run(machine, weights, x)
    assert relative_error(y, unpack(pack(x)) @ weights.values.T) < 1e-6


def test_a_block_beyond_float(machine: Machine) -> None:
    """MXFP4's 255 with codes of one half: 2^127 each, what is left of it in a float."""
    rows = np.zeros((16, 8, 17), np.uint8)
    rows[:, 3, 0], rows[:, 3, 1] = 255, 0x01
    weights = Stored("MXFP4", 256, rows.reshape(16, -1))
    taken = machine.garbage((1, 256))
    take_rows(machine.launcher, weights.matrix(machine), machine.put(np.zeros(1, np.int32)), taken)
    assert np.array_equal(machine.get(taken)[0], weights.values[0].astype(np.float32))
    assert machine.get(taken).max() == np.float32(2.0**127)


@pytest.mark.parametrize("form", FEW)
@pytest.mark.parametrize("rows", [16, 33, 80, 130, 272])
@pytest.mark.parametrize("processors", [1, 3, 7])
def test_shapes_and_splits(machine: Machine, form: str, rows: int, processors: int) -> None:
    """Odd tails, several groups of rows, groups that are cut, blocks within one group."""
    weights, x = stored(form, rows, 1280), normal_rows(2, 1280)
    y = run(with_processors(machine, processors), weights, x)
    assert relative_error(y, unpack(pack(x)) @ weights.values.T) < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_in_any_company(machine: Machine, form: str) -> None:
    """1 to 40 rows, which are all variants and several passes; other rows, other places."""
    weights, x = stored(form, 48, 1024), normal_rows(40, 1024)
    with_processors(machine, 3)
    all_rows = run(machine, weights, x)
    for tokens in (1, 4, 5, 8, 9, 16, 17):
        assert np.array_equal(run(machine, weights, x[:tokens]), all_rows[:tokens]), tokens
    moved = run(machine, weights, x[[7, 30, 2]])
    assert np.array_equal(moved, all_rows[[7, 30, 2]])


@pytest.mark.parametrize("tokens", range(1, 17))
def test_every_number_of_rows(machine: Machine, tokens: int) -> None:
    weights, x = stored("Q4_K", 24, 512), normal_rows(tokens, 512)
    y = run(machine, weights, x)
    assert relative_error(y, unpack(pack(x)) @ weights.values.T) < 1e-6


def test_a_broken_row_stays_alone(machine: Machine) -> None:
    weights, x = stored("Q4_K", 40, 512), normal_rows(6, 512)
    whole = run(machine, weights, x)
    x[2, 5] = np.nan
    x[4, 300] = np.inf
    y = run(machine, weights, x)
    assert np.isnan(y[[2, 4]]).all()
    others = [0, 1, 3, 5]
    assert np.array_equal(y[others], whole[others])


def test_a_launch_twice_is_the_same(machine: Machine) -> None:
    """Counters reset themselves, partial sums of before are not read."""
    weights, packed = stored("Q5_K", 140, 1024), put_packed(machine, normal_rows(5, 1024))
    matrix, space = weights.matrix(machine), workspace(machine, 5, 140)
    first, second = machine.garbage((5, 140)), machine.garbage((5, 140))
    for y in (first, second):
        product(machine.launcher, packed, matrix, y, space)
    assert np.array_equal(machine.get(first), machine.get(second))


def test_wrong_shapes_are_refused(machine: Machine) -> None:
    weights = stored("Q4_K", 32, 512)
    matrix, space = weights.matrix(machine), workspace(machine, 2, 32)
    x, y = put_packed(machine, normal_rows(2, 512)), machine.garbage((2, 32))

    def refused(text: str, x: PackedRows = x, y: object = y, space: Workspace = space) -> None:
        with pytest.raises(ValueError, match=text):
            product(machine.launcher, x, matrix, y, space)

    refused("wide", x=put_packed(machine, normal_rows(2, 256)))
    refused("needed", y=machine.garbage((1, 32)))
    refused("needed", y=machine.garbage((2, 31)))
    refused("partial sums", space=Workspace(machine.garbage(8), space.counters))
    refused("counters", space=Workspace(space.partials, machine.garbage(0, np.int32)))
