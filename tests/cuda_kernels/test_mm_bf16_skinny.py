"""Products with plain matrices on the shim: against the reference, and each row for itself."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shim.launcher import HostLauncher
from support.packed_rows import pack, rows_of, unpack

from specdec.core.backend.layers import Floats, MatrixPart
from specdec.core.backend.reference.backend import ReferenceBackend
from specdec.core.gguf.quants import find_format
from specdec.core.gguf.reader import Tensor
from specdec.cuda_kernels.mm_bf16_skinny import Plain, PlainMatrix, mm_skinny
from specdec.cuda_kernels.packed import PackedRows

FORMS = [*product(Plain, ("packed",)), (Plain.BF16, "rows"), (Plain.F32, "rows")]
# of the input as the kernel gets it: float32 sums; two bfloat16 hold 16 bits of a float
ERRORS = {"packed": 3e-7, "rows": 8e-6}
SHAPES = [(1, 48, 256), (3, 50, 520), (4, 33, 1024), (7, 70, 72), (16, 40, 776), (19, 16, 264)]


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


def run(
    x: PackedRows | Floats, w: PlainMatrix, launcher: HostLauncher | None = None, wide: int = 0
) -> Floats:
    """The product in the columns from 2 on of rows that are full of sevens."""
    n_out = w.weights.shape[0]
    n_rows = len(x.q) if isinstance(x, PackedRows) else len(x)
    y = np.full((n_rows, 2 + n_out + wide), 7, np.float32)
    mm_skinny(HostLauncher() if launcher is None else launcher, x, w, y, column=2)
    assert (y[:, :2] == 7).all()
    assert (y[:, 2 + n_out :] == 7).all()
    return np.ascontiguousarray(y[:, 2 : 2 + n_out])


def distance(found: Floats, exact: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_equals_the_reference(kind: Plain, form: str, shape: tuple[int, int, int]) -> None:
    n_rows, n_out, n_k = shape
    weights, tensor = stored(kind, n_out, n_k)
    bias, x = normal(1, n_out)[0], normal(n_rows, n_k)
    given: PackedRows | Floats = pack(x) if form == "packed" else x
    found = run(given, PlainMatrix(weights, kind, bias), wide=3)
    judge = ReferenceBackend("cpu", torch.float64)
    matrix = judge.matrix([MatrixPart(tensor, bias=bias)])
    as_given = unpack(given)[:, :n_k] if isinstance(given, PackedRows) else x.astype(np.float64)
    limit = 3e-7 if kind is Plain.F32 else ERRORS[form]
    assert distance(found, judge.matmul(torch.from_numpy(as_given), matrix).numpy()) < limit
    exact = judge.matmul(torch.from_numpy(x.astype(np.float64)), matrix).numpy()
    assert distance(found, exact) < 1e-4


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_row_has_its_bits_in_any_company_and_width_of_matrix(kind: Plain, form: str) -> None:
    n_rows, n_out, n_k = 19, 40, 640
    weights, _ = stored(kind, n_out, n_k)
    x = normal(n_rows, n_k)
    x[5, 3] = np.nan  # its row alone is lost
    given: PackedRows | Floats = pack(x) if form == "packed" else x
    whole = run(given, PlainMatrix(weights, kind), HostLauncher(n_processors=0))
    assert np.flatnonzero(np.isnan(whole).any(axis=1)).tolist() == [5]
    for first, n in ((0, 1), (1, 3), (5, 1), (2, 7), (3, 16)):
        some = slice(first, first + n)
        part = rows_of(given, some) if isinstance(given, PackedRows) else given[some].copy()
        narrow = PlainMatrix(weights[7:].copy(), kind)
        for n_processors in (0, 4):  # blocks of 32 columns, or of 16
            launcher = HostLauncher(n_processors=n_processors)
            assert np.array_equal(run(part, narrow, launcher), whole[some, 7:], equal_nan=True)


@pytest.mark.parametrize("seed", [3, 8])
@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_the_order_of_threads_and_blocks_is_nothing(kind: Plain, form: str, seed: int) -> None:
    weights, _ = stored(kind, 36, 1288)
    for n_rows in (2, 6, 17):
        x = normal(n_rows, 1288)
        given: PackedRows | Floats = pack(x) if form == "packed" else x
        w = PlainMatrix(weights, kind)
        assert np.array_equal(run(given, w), run(given, w, HostLauncher(seed=seed)))


@pytest.mark.parametrize("kind", Plain)
def test_adds_to_what_is_there(kind: Plain) -> None:
    weights, _ = stored(kind, 20, 256)
    w, x = PlainMatrix(weights, kind, normal(1, 20)[0]), pack(normal(5, 256))
    before = normal(5, 20, seed=4)
    y = before.copy()
    mm_skinny(HostLauncher(), x, w, y, add=True)
    assert np.array_equal(y, before + run(x, w))


def test_float_rows_meet_float_weights_as_unpacked_rows_do() -> None:
    """Packed rows are no format of their own: d * (128 high + low), rounded once."""
    weights, _ = stored(Plain.F32, 10, 512)
    x = pack(normal(3, 512))
    rows = unpack(x).astype(np.float32)
    w = PlainMatrix(weights, Plain.F32)
    assert np.array_equal(run(x, w), run(rows, w))


def test_shapes_are_checked() -> None:
    launcher, x, y = HostLauncher(), normal(2, 256), np.zeros((2, 20), np.float32)
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
            mm_skinny(launcher, given, w, y, column=column)
