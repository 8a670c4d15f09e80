"""Single kernels against numpy: functions of vectors, packing, half floats, embedding rows."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.blocks import random_blocks
from support.int8_rows import MOST_WEIGHT, PAIR, check_words, pack_split, unpack

from nextn.core.backend.cpu.emit import Emitter
from nextn.core.backend.cpu.formats import FORMATS
from nextn.core.backend.cpu.formats.tile_format import Record
from nextn.core.backend.cpu.inputs import RowCount, groups_of
from nextn.core.backend.cpu.kernels import mathematics as m
from nextn.core.backend.cpu.kernels.pack import write_pack
from nextn.core.backend.cpu.kernels.product import write_embed
from nextn.core.backend.cpu.kernels.row_kernels import write_maxima
from nextn.core.backend.cpu.kernels.tile import WIDTHS
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.cpu.tile_matrix import Repacker
from nextn.core.backend.layers import MatrixPart
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor

SET_NAMES = [name for name, made in SETS.items() if made.is_available()]
FUNCTIONS = ("exp", "sigmoid", "silu", "gelu", "gelu_erf", "softplus", "tanh")
Floats = NDArray[np.float32]


@cache
def kernels(set_name: str) -> Kernels:
    return Kernels(SETS[set_name]())


def run(set_name: str, name: str, write: Callable[[Emitter], None], *words: int) -> None:
    address = kernels(set_name).get({name: write})[name]
    arguments = np.array(words, np.int64)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)
    function(arguments.ctypes.data, 0, 1)


def apply(set_name: str, name: str, x: Floats) -> Floats:
    """A function of `mathematics` on an array whose length is a multiple of 16."""
    out = np.empty_like(x)

    def write(e: Emitter) -> None:
        source, target = e.words(e.parameters[0], 2)
        with e.range(0, x.nbytes, 64) as at:
            e.store(getattr(m, name)(e, e.load(m.F32X16, source + at)), target + at)
        e.finish()

    run(set_name, f"test_{name}_{len(x)}", write, x.ctypes.data, out.ctypes.data)
    return out


def reference(name: str, x: Any) -> Any:
    x = x.astype(np.float64)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-x))
        return {
            "exp": lambda: np.exp(x),
            "sigmoid": lambda: sigmoid,
            "silu": lambda: x * sigmoid,
            "gelu": lambda: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
            "gelu_erf": lambda: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
            "softplus": lambda: np.logaddexp(0, x),
            "tanh": lambda: np.tanh(x),
        }[name]()


@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate(name: str, set_name: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 4000), np.linspace(-1, 1, 96)]).astype(np.float32)
    got, want = apply(set_name, name, x), reference(name, x)
    most = 3e-7 if name == "gelu_erf" else 2e-7
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=most)


@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_stays_and_extremes_are_sane(name: str, set_name: str) -> None:
    x = np.zeros(16, np.float32)
    x[:5] = [np.nan, -1e4, -88, 80, 1e-38]
    got = apply(set_name, name, x)
    assert np.isnan(got[0])
    assert np.isfinite(got[1:]).all()
    np.testing.assert_allclose(got[1:5], reference(name, x[1:5]), rtol=1e-6, atol=1e-6)


def pack(set_name: str, rows: Floats, *, split: bool = False) -> NDArray[np.uint8]:
    """Records in the order (row, block), whatever groups they were written in."""
    n, width = rows.shape
    blocks = width // 32
    count = RowCount()
    count.set(n)
    padded = np.zeros((n + 16, width), np.float32)
    padded[:n] = rows
    records = np.zeros((n + 16) * blocks * Record.SIZE, np.uint8)
    run(
        set_name, f"pack_{width}_{split}", lambda e: write_pack(e, width, split=split),
        count.address, padded.ctypes.data, records.ctypes.data,
    )  # fmt: skip
    out = []
    for group_row, size in groups_of(n)[0]:
        start = group_row * blocks * Record.SIZE
        group = records[start : start + size * blocks * Record.SIZE]
        out.append(group.reshape(blocks, size, Record.SIZE).swapaxes(0, 1))
    return np.concatenate(out)[:n]


@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.parametrize("n", [1, 2, 5, 9, 13, 37])
def test_packing_rounds_to_the_nearest_step(n: int, set_name: str) -> None:
    rows = np.random.default_rng(n).standard_normal((n, 96)).astype(np.float32)
    records, simd = pack(set_name, rows), SETS[set_name]()
    values, steps = unpack(records, simd)
    blocks = rows.reshape(n, 3, 32)
    assert (np.abs(values - blocks) <= 0.501 * steps).all()
    largest = np.abs(blocks).max(-1)
    np.testing.assert_allclose(steps.max(-1), largest / 127, rtol=1e-6)
    check_words(records, simd)


@pytest.mark.parametrize("set_name", SET_NAMES)
def test_a_large_number_costs_its_pair_alone(set_name: str) -> None:
    """Where pairs are weighed; else it costs the whole block."""
    rows = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    rows[:, 5] = [5.0, 50.0, 500.0, 5e6]
    records, simd = pack(set_name, rows), SETS[set_name]()
    check_words(records, simd)
    values, steps = unpack(records[:, 0], simd)
    assert (np.abs(values - rows) <= 0.501 * steps).all()
    others, largest = steps[:, PAIR == 1].max(-1), np.abs(rows[:, PAIR == 1]).max(-1)
    if simd.weighs_pairs:
        assert (others <= largest / 127 + rows[:, 5] / (127 * MOST_WEIGHT)).all()
    else:
        np.testing.assert_allclose(others, rows[:, 5] / 127, rtol=1e-6)


@pytest.mark.parametrize("set_name", SET_NAMES)
def test_a_large_number_costs_its_half_alone(set_name: str) -> None:
    """Where a block has two scales."""
    rows = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    rows[:, 5], rows[:, 60] = [5.0, 50.0, 500.0, 5e6], [5e6, 500.0, 50.0, 5.0]
    records, want = pack(set_name, rows, split=True), pack_split(rows)[0].swapaxes(0, 1)
    scales = [Record.SCALE, Record.SECOND_SCALE]
    minima = [Record.MINIMUM, *Record.HALF_MINIMA]
    floats, wanted = (some.view(np.float32) for some in (records, want))
    for words in (scales, minima):
        at = [word // 4 for word in words]
        np.testing.assert_allclose(floats[..., at], wanted[..., at], rtol=1e-5, atol=1e-6)
    at = [word // 4 for word in Record.HALF_SUMS]
    assert np.array_equal(records.view(np.int32)[..., at], want.view(np.int32)[..., at])
    assert np.array_equal(records[..., : Record.BLOCK], want[..., : Record.BLOCK])


@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_a_bad_number_makes_the_scale_of_its_block_nan(
    bad: float, place: int, set_name: str
) -> None:
    rows = np.ones((1, 64), np.float32)
    rows[0, 32 + place] = bad
    scale = pack(set_name, rows).view(np.float32)[0, :, Record.SCALE // 4]
    assert np.isfinite(scale[0])
    assert np.isnan(scale[1])


@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40])
def test_a_block_of_nothing_has_scale_zero(value: float, set_name: str) -> None:
    records = pack(set_name, np.full((1, 32), value, np.float32))
    assert records.view(np.float32)[0, 0, Record.SCALE // 4] == 0
    assert not records[0, 0, :32].any()


@pytest.mark.parametrize("set_name", SET_NAMES)
def test_half_floats_round_like_numpy(set_name: str) -> None:
    """Both ways, on every half float and on floats between them."""
    halves = np.arange(65536, dtype=np.uint16)
    between = np.random.default_rng(0).standard_normal(65536).astype(np.float32)
    floats = np.concatenate([halves.view(np.float16).astype(np.float32), between, between * 1e-6])
    back, up = np.zeros(len(floats), np.uint16), np.zeros(65536, np.float32)

    def write(e: Emitter) -> None:
        source, target, half_source, float_target = e.words(e.parameters[0], 4)
        with e.range(0, floats.nbytes, 64) as at:
            half = e.simd.to_half(e, e.load(m.F32X16, source + at))
            e.store(half, target + at // 2, 2)
        with e.range(0, halves.nbytes, 32) as at:
            from nextn.core.backend.cpu.formats.unpack import I16X16

            wide = e.simd.from_half(e, e.load(I16X16, half_source + at, 2))
            e.store(wide, float_target + at * 2)
        e.finish()

    arrays = (floats, back, halves, up)
    run(set_name, "test_halves", write, *(a.ctypes.data for a in arrays))
    nan = np.isnan(halves.view(np.float16))
    assert np.array_equal(up[~nan], halves.view(np.float16)[~nan].astype(np.float32))
    assert np.isnan(up[nan]).all()
    want = floats.astype(np.float16)
    is_nan = np.isnan(floats)
    assert np.array_equal(back[~is_nan], want.view(np.uint16)[~is_nan])
    assert np.isnan(back[is_nan].view(np.float16)).all()


@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.parametrize("type_name", FORMATS)
def test_embedding_rows_are_the_dequantised_ones(type_name: str, set_name: str) -> None:
    stored, width, n = find_format(type_name), 512, 48
    raw = random_blocks(type_name, n, width)
    want = stored.dequantize(raw.reshape(-1, stored.block_bytes)).reshape(n, width)
    tensor = Tensor("t", (n, width), stored, np.ascontiguousarray(raw).reshape(-1))
    made = Repacker(kernels(set_name), 1).repack(MatrixPart(tensor))
    form, quants, scales = made.form, made.quants, made.scales
    tokens = np.array([47, 0, 16, 15, 33], np.int64)
    out = np.zeros((5, width), np.float32)
    count = RowCount()
    count.set(5)
    run(
        set_name, f"embed_{form.name}_{width}", lambda e: write_embed(e, form, width),
        count.address, tokens.ctypes.data, quants.ctypes.data, quants.shape[1],
        scales.ctypes.data, scales.shape[1], out.ctypes.data,
    )  # fmt: skip
    # Where a format has two scales, they meet in another order: the last bit may differ.
    np.testing.assert_allclose(out, want[tokens], rtol=1e-6, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("n", range(1, 70))
def test_groups_cover_all_rows_once(n: int) -> None:
    table, start, size = groups_of(n)
    assert (np.diff(table[:, 0]) == table[:-1, 1]).all()
    assert set(table[:, 1]) <= set(WIDTHS)
    assert n <= table[-1].sum() <= n + 1, "idle rows cost as much as others"
    for row in range(n):
        assert start[row] <= row < start[row] + size[row]


@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.parametrize("width", [64, 65, 100, 640, 3, 1000])
def test_block_maxima(width: int, set_name: str) -> None:
    """Wherever a NaN is, it is seen."""
    rows = np.random.default_rng(width).standard_normal((width + 1, width)).astype(np.float32)
    rows[np.arange(width), np.arange(width)] = np.nan
    n_blocks = -(-width // 64)
    out = np.zeros((len(rows), n_blocks), np.float32)
    count = RowCount()
    count.set(len(rows))
    run(
        set_name, f"maxima_{width}", lambda e: write_maxima(e, width, 64),
        count.address, rows.ctypes.data, out.ctypes.data,
    )  # fmt: skip
    padded = np.full((len(rows), n_blocks * 64), -np.inf, np.float32)
    padded[:, :width] = rows
    assert np.array_equal(out, padded.reshape(len(rows), n_blocks, 64).max(-1), equal_nan=True)
