"""What products end in, against the ops of the reference backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shim.machine import HostMachine, Machine
from support.packed_rows import pack, same_packed, unpack
from support.quantised import (
    Stored,
    empty_rows,
    get_packed,
    normal_rows,
    put_packed,
    relative_error,
    stored,
    workspace,
)

from nextn.core.backend.interface import MAXIMA_BLOCK
from nextn.core.backend.layers import Gate, MatrixPart
from nextn.core.backend.layers import GateActivation as ReferenceActivation
from nextn.core.backend.reference.backend import ReferenceBackend
from nextn.core.backend.reference.float_matrix import ReferenceMatrix
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor
from nextn.cuda_kernels.packed import PackedRows
from nextn.cuda_kernels.qmm import (
    OAI_LIMIT,
    Activation,
    Split,
    Workspace,
    gated,
    gated_order,
    head,
    product,
    split_product,
)

Floats = NDArray[np.float32]
WIDTH = 512


def reference(
    weights: Stored, scale: Floats | None = None, bias: Floats | None = None
) -> tuple[ReferenceBackend, ReferenceMatrix]:
    shape = (weights.width, len(weights.rows))
    tensor = Tensor("w", shape[::-1], find_format(weights.form), weights.rows.reshape(-1))
    backend = ReferenceBackend()
    return backend, backend.matrix([MatrixPart(tensor, bias, scale)])


def rounded(x: Floats) -> torch.Tensor:
    """What the kernel sees: rows of 15 bits."""
    return torch.from_numpy(unpack(pack(x))[:, : x.shape[1]].astype(np.float32))


@pytest.fixture(params=[1, 5])
def processors(request: pytest.FixtureRequest, machine: Machine) -> Machine:
    """Whole groups of rows in one block, and groups that many share."""
    if isinstance(machine, HostMachine):
        machine.launcher.n_processors = request.param
    return machine


@pytest.mark.parametrize("rows", [40, 136])
def test_product_with_bias_and_scale(processors: Machine, rows: int) -> None:
    machine, weights, x = processors, stored("Q4_K", rows, WIDTH), normal_rows(5, WIDTH)
    bias = normal_rows(1, rows, 1)[0]
    scale = np.full(rows, 0.75, np.float32)
    backend, matrix = reference(weights, scale[:1], bias)
    expected = backend.ops.matmul(rounded(x), matrix).numpy()
    y, space = machine.garbage((5, rows)), workspace(machine, 5, rows)
    ours = weights.matrix(machine, scale=scale, bias=bias)
    product(machine.launcher, put_packed(machine, x), ours, y, space)
    assert relative_error(machine.get(y), expected) < 1e-6


def test_a_scale_for_each_row(machine: Machine) -> None:
    """Concatenated tensors have scales of their own."""
    weights, x = stored("Q4_0", 48, WIDTH), normal_rows(2, WIDTH)
    scale = np.repeat(np.array([1, 2, -0.5], np.float32), 16)
    y, space = machine.garbage((2, 48)), workspace(machine, 2, 48)
    product(
        machine.launcher, put_packed(machine, x), weights.matrix(machine, scale=scale), y, space
    )
    expected = unpack(pack(x)) @ weights.values.T * scale
    assert relative_error(machine.get(y), expected) < 1e-6


def test_added_to_the_residual(processors: Machine) -> None:
    machine, weights, x = processors, stored("Q6_K", 136, WIDTH), normal_rows(6, WIDTH)
    residual = normal_rows(6, 136, 2)
    backend, matrix = reference(weights)
    expected = backend.ops.matmul(rounded(x), matrix, torch.from_numpy(residual)).numpy()
    y, space = machine.put(residual), workspace(machine, 6, 136)
    product(machine.launcher, put_packed(machine, x), weights.matrix(machine), y, space, add=True)
    assert relative_error(machine.get(y), expected) < 1e-6


def test_matrices_side_by_side_in_one_array(machine: Machine) -> None:
    """Parts of other formats fill columns of their own and leave the others alone."""
    x, first, second = normal_rows(3, WIDTH), stored("Q4_K", 24, WIDTH), stored("Q6_K", 20, WIDTH)
    y, space = machine.put(np.full((3, 50), 7, np.float32)), workspace(machine, 3, 24)
    packed = put_packed(machine, x)
    product(machine.launcher, packed, first.matrix(machine), y, space, column=2)
    product(machine.launcher, packed, second.matrix(machine), y, space, column=26)
    made = machine.get(y)
    expected = unpack(pack(x)) @ np.concatenate([first.values, second.values]).T
    assert relative_error(made[:, 2:46], expected) < 1e-6
    assert (made[:, [0, 1, 46, 47, 48, 49]] == 7).all()


@pytest.mark.parametrize("columns", [0, 70, 128, 136])
def test_split_rows_go_where_they_are_sent(processors: Machine, columns: int) -> None:
    machine, weights, x = processors, stored("Q5_K", 136, WIDTH), normal_rows(4, WIDTH)
    row_of = np.array([5, 0, 9, 2], np.int32)
    ring = machine.put(np.full((10, 140), 3, np.float32))
    y, space = machine.put(np.full((4, 140), 4, np.float32)), workspace(machine, 4, 136)
    split = Split(columns, ring, machine.put(row_of))
    packed, matrix = put_packed(machine, x), weights.matrix(machine)
    split_product(machine.launcher, packed, matrix, y, split, space, column=1)
    rings, rest = machine.get(ring), machine.get(y)
    expected = unpack(pack(x)) @ weights.values.T
    joined = np.concatenate([rings[row_of, :columns], rest[:, 1 : 137 - columns]], axis=1)
    assert relative_error(joined, expected) < 1e-6
    assert (rings[row_of, columns:] == 3).all()
    assert (np.delete(rings, row_of, axis=0) == 3).all()
    assert (rest[:, 0] == 4).all()
    assert (rest[:, 137 - columns :] == 4).all()


@pytest.mark.parametrize("vocabulary", [64, 130, 300])
@pytest.mark.parametrize("tokens", [1, 7, 18])
def test_head_and_its_maxima(processors: Machine, vocabulary: int, tokens: int) -> None:
    machine, weights = processors, stored("Q6_K", vocabulary, WIDTH)
    x = normal_rows(tokens, WIDTH)
    backend, matrix = reference(weights)
    blocks = -(-vocabulary // MAXIMA_BLOCK)
    logits, maxima = machine.garbage((tokens, vocabulary)), machine.garbage((tokens, blocks))
    space = workspace(machine, tokens, vocabulary)
    packed, ours = put_packed(machine, x), weights.matrix(machine)
    head(machine.launcher, packed, ours, logits, space, maxima=maxima)
    made = machine.get(logits)
    assert relative_error(made, backend.ops.head(rounded(x), matrix).numpy()) < 1e-6
    padded = np.full((tokens, blocks * MAXIMA_BLOCK), -np.inf, np.float32)
    padded[:, :vocabulary] = made
    best = padded.reshape(tokens, blocks, MAXIMA_BLOCK).max(-1)
    assert np.array_equal(machine.get(maxima), best)


def test_a_maximum_does_not_hide_nan(machine: Machine) -> None:
    weights, x = stored("Q8_0", 200, 256), normal_rows(3, 256)
    weights.rows[70, :2] = np.array([np.nan], np.float16).view(np.uint8)
    logits, maxima = machine.garbage((3, 200)), machine.garbage((3, 4))
    space = workspace(machine, 3, 200)
    packed, matrix = put_packed(machine, x), weights.matrix(machine)
    head(machine.launcher, packed, matrix, logits, space, maxima=maxima)
    assert np.isnan(machine.get(logits)[:, 70]).all()
    broken = np.isnan(machine.get(maxima))
    assert broken[:, 1].all()
    assert not broken[:, [0, 2, 3]].any()


def test_head_without_maxima(machine: Machine) -> None:
    weights, x = stored("Q4_K", 66, 256), normal_rows(2, 256)
    logits, space = machine.garbage((2, 66)), workspace(machine, 2, 66)
    head(machine.launcher, put_packed(machine, x), weights.matrix(machine), logits, space)
    assert relative_error(machine.get(logits), unpack(pack(x)) @ weights.values.T) < 1e-6


def run_gated(
    machine: Machine, weights: Stored, x: Floats, activation: Activation = Activation.SILU
) -> PackedRows:
    width = len(weights.rows) // 2
    out = empty_rows(machine, len(x), width)
    space = workspace(machine, len(x), 2 * width, hidden=width)
    matrix = weights.matrix(machine, gated_order(width))
    gated(machine.launcher, put_packed(machine, x), matrix, out, space, activation=activation)
    assert not machine.get(space.counters).any()
    hidden: Floats = machine.get(space.hidden)
    made = get_packed(machine, out)
    assert same_packed(made, pack(hidden)), "packed is what was computed"
    return made


@pytest.mark.parametrize("width", [8, 72, 256, 328])
@pytest.mark.parametrize("activation", Activation)
def test_gated_products(processors: Machine, width: int, activation: Activation) -> None:
    weights, x = stored("Q4_K", 2 * width, WIDTH), normal_rows(3, WIDTH)
    backend, matrix = reference(weights)
    theirs = ReferenceActivation[activation.name]
    limit = OAI_LIMIT if activation is Activation.OAI else 0.0
    expected = backend.ops.gated_ffn(rounded(x), matrix, Gate(theirs, limit)).numpy()
    made = unpack(run_gated(processors, weights, x, activation))
    assert relative_error(made[:, :width], expected) < 1e-4
    assert not made[:, width:].any()


@pytest.mark.parametrize("form", ["Q4_K", "Q8_0"])
def test_gated_rows_have_the_same_bits_in_any_company(processors: Machine, form: str) -> None:
    weights, x = stored(form, 2 * 264, WIDTH), normal_rows(20, WIDTH)
    every = run_gated(processors, weights, x)
    for tokens in (1, 4, 6, 11, 17):
        some = run_gated(processors, weights, x[:tokens])
        rows = PackedRows(every.q[:tokens], every.d[:tokens], every.s[:tokens])
        assert same_packed(some, rows), tokens


def test_gates_and_ups_with_bias_and_scale(machine: Machine) -> None:
    """In the order of the file's rows: gates, then ups."""
    weights, x = stored("Q4_K", 32, 256), normal_rows(2, 256)
    bias, scale = normal_rows(1, 32, 5)[0], np.repeat(np.array([0.5, 2], np.float32), 16)
    out = empty_rows(machine, 2, 16)
    space = workspace(machine, 2, 32, hidden=16)
    matrix = weights.matrix(machine, gated_order(16), scale, bias)
    gated(machine.launcher, put_packed(machine, x), matrix, out, space)
    rows = unpack(pack(x)) @ weights.values.T * scale + bias
    expected = rows[:, :16] / (1 + np.exp(-rows[:, :16])) * rows[:, 16:]
    assert relative_error(machine.get(space.hidden), expected) < 1e-6


def test_wrong_shapes_are_refused(machine: Machine) -> None:
    weights, x = stored("Q4_K", 48, 256), put_packed(machine, normal_rows(2, 256))
    matrix, y = weights.matrix(machine), machine.garbage((2, 48))
    space = workspace(machine, 2, 48, hidden=24)
    ring, row_of = machine.garbage((4, 16)), machine.put(np.zeros(2, np.int32))
    for split, text in (
        (Split(49, ring, row_of), "a split at 49 of 48"),
        (Split(17, ring, row_of), "cannot take 17"),
        (Split(16, ring, row_of[:1]), "1 places for 2"),
    ):
        with pytest.raises(ValueError, match=text):
            split_product(machine.launcher, x, matrix, y, split, space)
    with pytest.raises(ValueError, match="maxima"):
        head(machine.launcher, x, matrix, y, space, maxima=machine.garbage((1, 1)))
    with pytest.raises(ValueError, match="packed rows"):
        gated(machine.launcher, x, matrix, empty_rows(machine, 2, 300), space)
    bare = Workspace(space.partials, space.counters)
    with pytest.raises(ValueError, match="hidden"):
        gated(machine.launcher, x, matrix, empty_rows(machine, 2, 24), bare)
