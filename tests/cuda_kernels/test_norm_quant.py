"""`norm_quant` against the reference's norm, and each row against itself in other company."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shim.launcher import HostLauncher
from shim.machine import Machine
from support.packed_rows import (
    WORST,
    empty_packed,
    garbage_packed,
    get_packed,
    pack,
    rows_of,
    same_packed,
    unpack,
)

from nextn.core.backend.layers import Norm
from nextn.core.backend.reference.paged_attention import normed
from nextn.cuda_kernels import norm_quant as module
from nextn.cuda_kernels.norm_quant import NormOutputs, RowNorm, norm_quant
from nextn.cuda_kernels.packed import BLOCK, PackedRows

Numpy = NDArray[Any]
Floats = NDArray[np.float32]
EPS = 1e-6
# Ragged ones, a warp, several; 4352: too wide for norm_quant_parts; 8200: two blocks per warp.
WIDTHS = (1, 5, 100, 256, 260, 300, 2052, 4352, 8200)


@dataclass
class Made:
    x: Floats
    packed: PackedRows
    rows: Floats
    halves: NDArray[np.uint16]


def run(machine: Machine, x: Floats, weight: Floats, **more: Numpy) -> Made:
    """All outputs at once, from a copy of x."""
    n_out, width = len(more.get("chosen", x)), x.shape[1]
    residual, packed = machine.put(x), garbage_packed(machine, n_out, width)
    rows = machine.garbage((n_out, width))
    halves = machine.garbage((n_out, width), np.uint16)
    norm_quant(
        machine.launcher,
        residual,
        RowNorm(machine.put(weight), EPS),
        NormOutputs(packed, rows, halves),
        **{name: machine.put(array) for name, array in more.items()},
    )
    kept = get_packed(machine, packed)
    return Made(machine.get(residual), kept, machine.get(rows), machine.get(halves))


def example(n_rows: int, width: int, n_parts: int = 0, seed: int = 0) -> list[Floats]:
    """x, weight, parts"""
    rng = np.random.default_rng(seed + width)
    shapes = ((n_rows, width), (width,), (n_rows, n_parts, width))
    x, weight, parts = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    x[:, rng.integers(0, width, 3)] *= 30
    return [x, weight, parts]


def exact_norm(x: NDArray[Any], weight: Floats) -> NDArray[np.float64]:
    wide = torch.from_numpy(np.asarray(x, np.float64))
    made = normed(wide, Norm(torch.from_numpy(weight).double(), EPS))
    return np.asarray(made.numpy())


def same_made(a: Made, b: Made) -> bool:
    """To the last bit, x included."""
    plain = ((a.x, b.x), (a.rows, b.rows), (a.halves, b.halves))
    return same_packed(a.packed, b.packed) and all(
        np.array_equal(one, other, equal_nan=True) for one, other in plain
    )


def as_bf16(x: Floats) -> NDArray[np.uint16]:
    rounded = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16)
    return np.asarray(rounded.numpy()).view(np.uint16)


@pytest.mark.parametrize("width", WIDTHS)
def test_is_the_references_norm(machine: Machine, width: int) -> None:
    x, weight, _ = example(3, width)
    made = run(machine, x, weight)
    exact = exact_norm(x, weight)
    reference = normed(torch.from_numpy(x), Norm(torch.from_numpy(weight), EPS)).numpy()
    scale = np.abs(exact).max()
    assert np.abs(made.rows - exact).max() <= 4e-7 * scale
    assert np.abs(made.rows - reference).max() <= 8e-7 * scale
    assert np.array_equal(made.x, x)
    assert np.array_equal(made.halves, as_bf16(made.rows))
    assert same_packed(made.packed, pack(made.rows))


@pytest.mark.parametrize(("outliers", "limit"), [(1, 8e-5), (30, 4e-4)])
def test_error_of_packed_rows(machine: Machine, outliers: float, limit: float) -> None:
    """Against float64, as a product sees it: of the whole row, and of each block's largest."""
    x, weight = np.random.default_rng(7).standard_normal((2, 4, 5120)).astype(np.float32)
    x[:, ::97] *= outliers
    weight = 1 + np.float32(0.1) * weight[0]
    values = unpack(run(machine, x, weight).packed)
    exact = exact_norm(x, weight)
    error = np.linalg.norm(values - exact) / np.linalg.norm(exact)
    assert error < limit
    blocks = np.abs(values - exact).reshape(4, -1, BLOCK).max(-1)
    largest = np.abs(exact).reshape(4, -1, BLOCK).max(-1)
    assert (blocks <= (WORST + 1e-6) * largest).all()


@pytest.mark.parametrize("n_parts", [1, 2, 9])
@pytest.mark.parametrize("width", [5, 300, 2048, 4352, 8200])
def test_adds_parts_in_order(machine: Machine, width: int, n_parts: int) -> None:
    x, weight, parts = example(2, width, n_parts)
    made = run(machine, x, weight, parts=parts)
    total = parts[:, 0]
    for i in range(1, n_parts):
        total = total + parts[:, i]
    assert np.array_equal(made.x, x + total)
    assert same_made(made, run(machine, x + total, weight))


@pytest.mark.parametrize("width", [260, 2048, 8200])
def test_a_row_is_the_same_in_any_company(machine: Machine, width: int) -> None:
    x, weight, parts = example(5, width, n_parts=3)
    together = run(machine, x, weight, parts=parts)
    assert same_made(together, run(machine, x, weight, parts=parts))
    for row in range(5):
        one = slice(row, row + 1)
        alone = run(machine, x[one], weight, parts=parts[one])
        assert np.array_equal(alone.rows, together.rows[one])
        assert same_packed(alone.packed, rows_of(together.packed, one))


def test_chosen_rows(machine: Machine) -> None:
    x, weight, parts = example(4, 520, n_parts=2)
    chosen = np.array([3, 0, -1, 3, 4], np.int32)
    everything = run(machine, x, weight, parts=parts)
    made = run(machine, x, weight, parts=parts, chosen=chosen)
    assert np.array_equal(made.x, x)
    real = [0, 1, 3]
    assert np.array_equal(made.rows[real], everything.rows[chosen[real]])
    assert np.isnan(made.rows[[2, 4]]).all()
    assert np.isnan(made.packed.d[[2, 4]]).all()
    for i in real:
        one, same = slice(i, i + 1), slice(chosen[i], chosen[i] + 1)
        assert same_packed(rows_of(made.packed, one), rows_of(everything.packed, same))


def test_a_chosen_row_beyond_x_is_not_read(machine: Machine) -> None:
    """It lies in memory."""
    whole, chosen = machine.put(np.ones((5, 300), np.float32)), np.array([4, 3], np.int32)
    norm, rows = RowNorm(machine.put(np.ones(300, np.float32)), EPS), machine.garbage((2, 300))
    out = NormOutputs(rows=rows)
    norm_quant(machine.launcher, whole[:4], norm, out, chosen=machine.put(chosen))
    assert np.isnan(machine.get(rows)).all(axis=1).tolist() == [True, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_spoils_its_own_row_only(machine: Machine, bad: float) -> None:
    x, weight, _ = example(3, 600)
    clean = run(machine, x, weight)
    x[1, 599] = bad
    made = run(machine, x, weight)
    assert np.isnan(made.rows[1, 599])
    assert np.isnan(made.packed.d[1, 2])
    for row in (0, 2):
        one = slice(row, row + 1)
        assert same_packed(rows_of(made.packed, one), rows_of(clean.packed, one))


def test_rows_of_zeros(machine: Machine) -> None:
    made = run(machine, np.zeros((1, 300), np.float32), np.ones(300, np.float32))
    assert not made.rows.any()
    assert not made.packed.d.any()


def test_outputs_that_nobody_wants(machine: Machine) -> None:
    x, weight, parts = example(2, 300, n_parts=1)
    whole = run(machine, x, weight, parts=parts)
    norm, launcher = RowNorm(machine.put(weight), EPS), machine.launcher
    residual, rows = machine.put(x), machine.garbage(x.shape)
    norm_quant(launcher, residual, norm, NormOutputs(), parts=machine.put(parts))
    assert np.array_equal(machine.get(residual), whole.x)
    norm_quant(launcher, residual, norm, NormOutputs(rows=rows))
    assert np.array_equal(machine.get(rows), whole.rows)


def test_every_variant_is_run() -> None:
    """By the widths above."""
    chosen = {module._variant(-(-w // BLOCK), n)[0].name for w in WIDTHS for n in (0, 2)}
    assert chosen == {k.name for k in module.KERNELS} - {"pack_rows"}


def test_shapes_are_checked() -> None:
    x, weight, parts = example(2, 300, n_parts=2)
    norm, out, launcher = RowNorm(weight, EPS), NormOutputs(), HostLauncher()
    wide = np.zeros((1, module.MAX_WIDTH + 1), np.float32)
    with pytest.raises(ValueError, match="at most 16384"):
        norm_quant(launcher, wide, norm, out)
    with pytest.raises(ValueError, match="weight: shape"):
        norm_quant(launcher, x, RowNorm(weight[1:], EPS), out)
    with pytest.raises(ValueError, match="parts: shape"):
        norm_quant(launcher, x, norm, out, parts=parts[:1])
    with pytest.raises(ValueError, match="none of them"):
        norm_quant(launcher, x, norm, out, parts=parts[:, :0])
    with pytest.raises(ValueError, match="normed rows: shape"):
        norm_quant(launcher, x, norm, NormOutputs(rows=x[:1]))
    packed = empty_packed(2, 300)
    with pytest.raises(ValueError, match="d of packed rows"):
        norm_quant(launcher, x, norm, NormOutputs(PackedRows(packed.q, packed.d[:1], packed.s)))
