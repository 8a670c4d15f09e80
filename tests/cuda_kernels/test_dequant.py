"""Repacked weights as bfloat16: the bits of the file's dequantisation, rounded once more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shim import sanitizer
from shim.machine import Machine
from support.blocks import random_blocks
from support.quantised import Stored, stored
from support.sass import whole

from nextn.core.gguf.quants import find_format
from nextn.cuda_kernels.compile import Compiler
from nextn.cuda_kernels.dequant import KERNELS, dequant_bf16, take_rows
from nextn.cuda_kernels.qmm import Matrix
from nextn.cuda_kernels.repack import FORMATS, gated_order

# Watched, one of each way to decode and to scale.
FORMS = (
    ("Q4_K", "Q6_K", "Q5_1", "MXFP4", "Q2_K", "NVFP4") if sanitizer.is_wanted() else tuple(FORMATS)
)


def expanded(machine: Machine, matrix: Matrix, n_rows: int, **more: Any) -> torch.Tensor:
    out = machine.garbage((n_rows, matrix.tiles.width), np.uint16)
    dequant_bf16(machine.launcher, matrix, out, **more)
    return torch.from_numpy(machine.get(out).view(np.int16)).view(torch.bfloat16)


def rounded(weights: Stored, scale: NDArray[np.float32] | None = None) -> torch.Tensor:
    values = weights.values.astype(np.float32)
    if scale is not None:
        values *= scale[:, None]
    return torch.from_numpy(values).to(torch.bfloat16)


def width_of(form: str) -> int:
    """Two blocks of 256, the last one not full where a format allows that."""
    return {32: 416, 64: 448, 256: 512}[FORMATS[form].block_size]


@pytest.mark.parametrize("form", FORMS)
def test_has_the_files_bits(machine: Machine, form: str) -> None:
    """A whole group of tiles and one of three, whose last rows are missing."""
    weights = stored(form, 165, width_of(form))
    made = expanded(machine, weights.matrix(machine), 165)
    assert torch.equal(made, rounded(weights))


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_taken_by_token(machine: Machine, form: str) -> None:
    """Of a whole group of tiles and of the last one; some twice, some that are none."""
    weights = stored(form, 165, width_of(form))
    ids = np.array([0, 164, 17, 127, 128, -1, 165, 17, 40], np.int32)
    x = machine.garbage((len(ids), weights.width))
    take_rows(machine.launcher, weights.matrix(machine), machine.put(ids), x)
    made = machine.get(x)
    there = (ids >= 0) & (ids < 165)
    assert np.array_equal(made[there], weights.values[ids[there]].astype(np.float32))
    assert np.isnan(made[~there]).all()


def test_rows_that_are_taken_are_scaled(machine: Machine) -> None:
    weights = stored("NVFP4", 20, 256)
    scale = np.random.default_rng(2).random(20).astype(np.float32)
    x, ids = machine.garbage((2, 256)), machine.put(np.array([19, 3], np.int32))
    take_rows(machine.launcher, weights.matrix(machine, scale=scale), ids, x)
    expected = weights.values[[19, 3]].astype(np.float32) * scale[[19, 3], None]
    assert np.array_equal(machine.get(x), expected)


@pytest.mark.parametrize("form", ["MXFP4", "NVFP4"])
def test_every_scale(machine: Machine, form: str) -> None:
    """All bytes that a scale may be, the smallest, the largest and those that are no number too."""
    stored_form = find_format(form)
    per_row = 512 // stored_form.block_size
    n_scales = {"MXFP4": 1, "NVFP4": 4}[form]
    rows = random_blocks(form, 32, 512)
    scales = np.arange(32 * per_row * n_scales) % 256
    rows[..., :n_scales] = scales.reshape(32, per_row, n_scales)
    assert len(set(rows[..., :n_scales].reshape(-1).tolist())) == 256
    weights = Stored(form, 512, rows.reshape(32, -1))
    assert torch.equal(expanded(machine, weights.matrix(machine), 32), rounded(weights))


@pytest.mark.parametrize("form", ["Q6_K", "Q5_1"])
def test_pieces(machine: Machine, form: str) -> None:
    weights = stored(form, 300, width_of(form))
    matrix, whole = weights.matrix(machine), rounded(weights)
    for first, n_rows in ((0, 128), (128, 128), (256, 44), (128, 30)):
        made = expanded(machine, matrix, n_rows, first_row=first)
        assert torch.equal(made, whole[first : first + n_rows])


def test_gates_and_ups_in_the_files_order(machine: Machine) -> None:
    weights = stored("Q4_K", 2 * 136, 256)
    scale = np.random.default_rng(1).random(2 * 136).astype(np.float32)
    matrix = weights.matrix(machine, gated_order(136), scale)
    whole = rounded(weights, scale)
    assert torch.equal(expanded(machine, matrix, 272, gated=True), whole)
    first = expanded(machine, matrix, 128, gated=True)
    assert torch.equal(first, torch.cat([whole[:64], whole[136:200]]))
    rest = expanded(machine, matrix, 144, gated=True, first_row=128)
    assert torch.equal(rest, torch.cat([whole[64:136], whole[200:]]))


def test_rows_with_scales(machine: Machine) -> None:
    weights = stored("MXFP4", 20, 256)
    scale = np.random.default_rng(2).random(20).astype(np.float32)
    made = expanded(machine, weights.matrix(machine, scale=scale), 20)
    assert torch.equal(made, rounded(weights, scale))


def test_pieces_are_checked(machine: Machine) -> None:
    matrix = stored("Q8_0", 200, 256).matrix(machine)
    narrow = machine.garbage((200, 255), np.uint16)
    with pytest.raises(ValueError, match="out: shape"):
        dequant_bf16(machine.launcher, matrix, narrow)
    with pytest.raises(ValueError, match="rows 64 to 128 of 200, in pieces of 128"):
        expanded(machine, matrix, 64, first_row=64)
    with pytest.raises(ValueError, match="rows 128 to 201 of 200"):
        expanded(machine, matrix, 73, first_row=128)
    with pytest.raises(ValueError, match="200 rows are not gates and ups"):
        expanded(machine, matrix, 200, gated=True)


@pytest.mark.parametrize("form", ["Q4_K", "Q5_K", "Q6_K"])
def test_instructions_hide_behind_memory(compiler: Compiler, sass: None, form: str) -> None:
    """A weight is some 2.6 bytes of traffic, during which an H200 issues 20 instructions."""
    (kernel,) = (kernel for kernel in KERNELS if kernel.name == f"dequant_{form}_bf16")
    code = whole(compiler.compile(kernel.source, 90), kernel.name)
    assert code.size <= 10 * 16 * 256 / 32
