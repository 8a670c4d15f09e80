"""Products with plain matrices: against the reference, and each row for itself."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shim import sanitizer
from shim.machine import HostMachine, Machine
from support.packed_rows import empty_packed, pack, rows_of, same_packed, unpack
from support.sass import hot_loop, lane_instructions_per_weight

from nextn.core.backend.layers import Floats, Gate, GateActivation, MatrixPart
from nextn.core.backend.reference.backend import ReferenceBackend
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor
from nextn.cuda_kernels import qmm
from nextn.cuda_kernels.compile import Cubin
from nextn.cuda_kernels.kernel import Source
from nextn.cuda_kernels.mm_bf16_skinny import (
    KERNELS,
    GatedSpace,
    Plain,
    PlainMatrix,
    mm_gated,
    mm_skinny,
)
from nextn.cuda_kernels.packed import PackedRows

FORMS = [*product(Plain, ("packed",)), (Plain.BF16, "rows"), (Plain.F32, "rows")]
# of the input as the kernel gets it: float32 sums; two bfloat16 hold 16 bits of a float
ERRORS = {"packed": 1e-6, "rows": 8e-6}
SHAPES = [(1, 48, 256), (3, 50, 520), (4, 33, 1024), (7, 70, 72), (16, 40, 776), (19, 16, 264)]
ACTIVATIONS = {
    GateActivation.SILU: qmm.Activation.SILU,
    GateActivation.GELU: qmm.Activation.GELU,
    GateActivation.OAI: qmm.Activation.OAI,
}


def stored(kind: Plain, n_out: int, n_k: int, seed: int = 0) -> tuple[NDArray[np.generic], Tensor]:
    """Random weights as the kernel takes them, and as a file has them."""
    values = np.random.default_rng(seed).standard_normal((n_out, n_k)).astype(np.float32)
    bits: NDArray[np.generic] = values
    if kind is Plain.BF16:
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif kind is Plain.F16:
        bits = values.astype(np.float16).view(np.uint16)
    data = bits.reshape(-1).view(np.uint8)
    return bits, Tensor("w", (n_out, n_k), find_format(kind.name), data)


def normal(n_rows: int, width: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal((n_rows, width)).astype(np.float32)


def put_rows(machine: Machine, x: PackedRows | Floats) -> PackedRows | Floats:
    if isinstance(x, PackedRows):
        return PackedRows(machine.put(x.q), machine.put(x.d), machine.put(x.s))
    rows: Floats = machine.put(x)
    return rows


def matrix(
    machine: Machine, weights: NDArray[np.generic], kind: Plain, bias: Floats | None = None
) -> PlainMatrix:
    put_bias = None if bias is None else machine.put(bias)
    return PlainMatrix(machine.put(weights), kind, put_bias)


def run(machine: Machine, x: PackedRows | Floats, w: PlainMatrix, beyond: int = 0) -> Floats:
    """The product in the columns from 2 on of rows that are full of sevens."""
    n_out = int(w.weights.shape[0])
    n_rows = len(x.q) if isinstance(x, PackedRows) else len(x)
    y = machine.put(np.full((n_rows, 2 + n_out + beyond), 7, np.float32))
    mm_skinny(machine.launcher, put_rows(machine, x), w, y, column=2)
    made = machine.get(y)
    assert (made[:, :2] == 7).all()
    assert (made[:, 2 + n_out :] == 7).all()
    return np.ascontiguousarray(made[:, 2 : 2 + n_out])


def with_processors(machine: Machine, n: int) -> Machine:
    """On the shim: fewer of them make wider blocks."""
    if isinstance(machine, HostMachine):
        machine.launcher.n_processors = n
    return machine


def distance(found: NDArray[np.floating], exact: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def as_given(x: PackedRows | Floats, n_k: int) -> NDArray[np.float64]:
    return unpack(x)[:, :n_k] if isinstance(x, PackedRows) else x.astype(np.float64)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_equals_the_reference(
    machine: Machine, kind: Plain, form: str, shape: tuple[int, int, int]
) -> None:
    n_rows, n_out, n_k = shape
    weights, tensor = stored(kind, n_out, n_k)
    bias, x = normal(1, n_out)[0], normal(n_rows, n_k)
    given: PackedRows | Floats = pack(x) if form == "packed" else x
    found = run(machine, given, matrix(machine, weights, kind, bias), beyond=3)
    judge = ReferenceBackend("cpu", torch.float64)
    reference = judge.matrix([MatrixPart(tensor, bias=bias)])
    rounded = torch.from_numpy(as_given(given, n_k))
    limit = 3e-7 if kind is Plain.F32 else ERRORS[form]
    assert distance(found, judge.ops.matmul(rounded, reference).numpy()) < limit
    exact = judge.ops.matmul(torch.from_numpy(x.astype(np.float64)), reference).numpy()
    assert distance(found, exact) < 1e-4


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_row_has_its_bits_in_any_company_and_width_of_block(
    machine: Machine, kind: Plain, form: str
) -> None:
    n_rows, n_out, n_k = 19, 40, 640
    weights, _ = stored(kind, n_out, n_k)
    x = normal(n_rows, n_k)
    x[5, 3] = np.nan  # its row alone is lost
    given: PackedRows | Floats = pack(x) if form == "packed" else x
    whole = run(with_processors(machine, 0), given, matrix(machine, weights, kind))
    assert np.flatnonzero(np.isnan(whole).any(axis=1)).tolist() == [5]
    lower = matrix(machine, weights[7:].copy(), kind)
    for first, n in ((0, 1), (1, 3), (5, 1), (2, 7), (3, 16)):
        some = slice(first, first + n)
        part = rows_of(given, some) if isinstance(given, PackedRows) else given[some].copy()
        for n_processors in (0, 4):  # blocks of 32 columns, or of 16
            found = run(with_processors(machine, n_processors), part, lower)
            assert np.array_equal(found, whole[some, 7:], equal_nan=True)


@pytest.mark.parametrize("kind", Plain)
def test_adds_to_what_is_there(machine: Machine, kind: Plain) -> None:
    weights, _ = stored(kind, 20, 256)
    w, x = matrix(machine, weights, kind, normal(1, 20)[0]), pack(normal(5, 256))
    before = normal(5, 20, seed=4)
    y = machine.put(before)
    mm_skinny(machine.launcher, put_rows(machine, x), w, y, add=True)
    assert np.array_equal(machine.get(y), before + run(machine, x, w))


def test_float_rows_meet_float_weights_as_unpacked_rows_do(machine: Machine) -> None:
    """Packed rows are no format of their own: d * (128 high + low), rounded once."""
    weights, _ = stored(Plain.F32, 10, 512)
    x = pack(normal(3, 512))
    w = matrix(machine, weights, Plain.F32)
    assert np.array_equal(run(machine, x, w), run(machine, unpack(x).astype(np.float32), w))


def gate(machine: Machine, x: Floats, w: PlainMatrix, activation: GateActivation) -> PackedRows:
    inner, n_rows = int(w.weights.shape[0]) // 2, len(x)
    made, given = put_rows(machine, empty_packed(n_rows, inner)), put_rows(machine, pack(x))
    assert isinstance(made, PackedRows)
    assert isinstance(given, PackedRows)
    arrivals = machine.put(np.zeros(GatedSpace.arrivals_size(n_rows, inner), np.int32))
    space = GatedSpace(machine.garbage((n_rows, inner)), arrivals)
    mm_gated(machine.launcher, given, w, made, space, activation=ACTIVATIONS[activation])
    assert not machine.get(arrivals).any()
    return PackedRows(*(machine.get(array) for array in (made.q, made.d, made.s)))


GATED_SHAPES = [(3, 300, 136), (18, 272, 72), (1, 256, 64), (9, 40, 520)]
if sanitizer.is_wanted():
    GATED_SHAPES = GATED_SHAPES[:2]


@pytest.mark.parametrize("activation", GateActivation)
@pytest.mark.parametrize("shape", GATED_SHAPES, ids=str)
@pytest.mark.parametrize("kind", Plain)
def test_gated_columns_equal_the_reference(
    machine: Machine, kind: Plain, shape: tuple[int, int, int], activation: GateActivation
) -> None:
    n_rows, inner, n_k = shape
    weights, tensor = stored(kind, 2 * inner, n_k)
    bias, x = normal(1, 2 * inner)[0], normal(n_rows, n_k)
    made = gate(machine, x, matrix(machine, weights, kind, bias), activation)
    judge = ReferenceBackend("cpu", torch.float64)
    reference = judge.matrix([MatrixPart(tensor, bias=bias)])
    given = torch.from_numpy(unpack(pack(x))[:, :n_k])
    limit = qmm.OAI_LIMIT if activation is GateActivation.OAI else 0.0
    exact = judge.ops.gated_ffn(given, reference, Gate(activation, limit)).numpy()
    found = unpack(made)
    steps = np.repeat(made.d, 256, axis=1)[:, :inner]
    assert (np.abs(found[:, :inner] - exact) < 0.55 * steps + 1e-5 * np.abs(exact)).all()
    assert not found[:, inner:].any()


@pytest.mark.parametrize("kind", Plain)
def test_gated_rows_have_their_bits_in_any_company(machine: Machine, kind: Plain) -> None:
    weights, _ = stored(kind, 2 * 288, 320)
    w, x = matrix(machine, weights, kind), normal(18, 320)
    whole = gate(machine, x, w, GateActivation.SILU)
    for some in (slice(0, 1), slice(3, 9), slice(2, 18)):
        found = gate(machine, x[some], w, GateActivation.SILU)
        assert same_packed(found, rows_of(whole, some))


def test_shapes_are_checked(machine: Machine) -> None:
    x, y = normal(2, 256), machine.garbage((2, 20))
    weights, _ = stored(Plain.BF16, 20, 256)
    odd, _ = stored(Plain.BF16, 20, 252)
    half, _ = stored(Plain.F16, 20, 256)
    faults = [
        (x, PlainMatrix(odd, Plain.BF16), 0, "rows of 252 values do not begin"),
        (x[:1], PlainMatrix(weights, Plain.BF16), 0, r"x: shape \(1, 256\)"),
        (pack(x[:, :200]), PlainMatrix(weights[:, :200], Plain.BF16), 1, "columns 1"),
        (x, PlainMatrix(half, Plain.F16), 0, "packed rows only"),
        (x, PlainMatrix(weights, Plain.BF16, np.zeros(19, np.float32)), 0, "bias: shape"),
    ]
    for given, w, column, message in faults:
        with pytest.raises(ValueError, match=message):
            mm_skinny(machine.launcher, given, w, y, column=column)
    space = GatedSpace(np.zeros((1, 10), np.float32), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="space: "):
        mm_gated(
            machine.launcher,
            pack(x),
            PlainMatrix(weights, Plain.BF16),
            empty_packed(2, 10),
            space,
        )


@pytest.mark.usefixtures("sass")
def test_instructions_per_weight(cubins: Mapping[tuple[Source, int], Cubin]) -> None:
    """15 would be free at 4.3 TB/s."""
    budgets = {
        "mm_bf16_packed_16_4": (1, 5.0),
        "mm_bf16_packed_32_4": (1, 3.5),
        "mm_bf16_packed_32_8": (2, 5.0),
        "mm_bf16_packed_32_16": (4, 8.5),
        "mm_f16_packed_gated_4": (1, 3.5),
    }
    kernels = {kernel.name: kernel for kernel in KERNELS}
    for name, (groups, budget) in budgets.items():
        loop = hot_loop(cubins[kernels[name].source, 90], name)
        assert lane_instructions_per_weight(loop, groups) <= budget
        assert loop.count("LDS", "128") == 4 * (1 if "_16_" in name else 2)
        assert loop.kinds["local"] == 0
