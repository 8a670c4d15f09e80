"""Every format, every width, every instruction set: products against dequantised weights."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.blocks import random_blocks
from support.int8_rows import pack, pack_split

from nextn.core.backend.cpu.formats import EXPANDED, FORMATS, find_tile_format
from nextn.core.backend.cpu.formats.floats import _Floats
from nextn.core.backend.cpu.formats.tile_format import CpuTileFormat
from nextn.core.backend.cpu.kernels.tile import TILE, WIDTHS, write_float_tile, write_tile
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.cpu.tile_matrix import Repacker
from nextn.core.backend.layers import MatrixPart
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor

N_IN = 512
SET_NAMES = [name for name, made in SETS.items() if made.is_available()]
SPLITTING = [name for name in SET_NAMES if not SETS[name]().weighs_pairs]
EXPANDED_TYPES = [
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4",
]  # fmt: skip


@cache
def kernels(set_name: str) -> Kernels:
    return Kernels(SETS[set_name]())


def tile_function(set_name: str, form: CpuTileFormat, m: int, *, split: bool = False) -> Any:
    name = f"tile_{form.name}_{m}_{split}"

    def write(e: Any) -> None:
        if isinstance(form, _Floats):
            write_float_tile(e, form, m)
        else:
            write_tile(e, form, m, is_split=split)

    address = kernels(set_name).get({name: write}, kinds={name: TILE})[name]
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)(address)


def repack(set_name: str, type_name: str, raw: Any) -> tuple[Any, Any]:
    """Tiles of stored rows, through the loader's own path."""
    data = np.ascontiguousarray(raw).reshape(-1)
    tensor = Tensor("t", (len(raw), N_IN), find_format(type_name), data)
    made = Repacker(kernels(set_name), 1).repack(MatrixPart(tensor))
    return made.quants, made.scales


def product(
    set_name: str, type_name: str, m: int, x: Any, n_valid: int = 16, *, split: bool = False
) -> tuple[Any, Any]:
    """(computed, exact) outputs of 16 weight rows and m activation rows."""
    stored, form = find_format(type_name), find_tile_format(type_name, SETS[set_name]())
    raw = random_blocks(type_name, 16, N_IN)
    weights = stored.dequantize(raw.reshape(-1, stored.block_bytes)).reshape(16, N_IN)
    quants, scales = repack(set_name, type_name, raw)
    if form.is_float:
        packed, values = x, x.astype(np.float64)
    else:
        packed, values = pack_split(x) if split else pack(x, SETS[set_name]())
    y = np.full((m, 16), 7, np.float32)
    tile_function(set_name, form, m, split=split)(
        quants.ctypes.data, scales.ctypes.data if scales.size else 0, N_IN // form.span,
        packed.ctypes.data, 4 * N_IN, y.ctypes.data, 64, n_valid, 0, 0,
    )  # fmt: skip
    return y, values @ weights.T.astype(np.float64)


@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.parametrize("type_name", [*FORMATS, *EXPANDED_TYPES])
@pytest.mark.slow
def test_product_equals_dequantised_weights_at_every_width(type_name: str, set_name: str) -> None:
    rows = np.random.default_rng(1).standard_normal((max(WIDTHS), N_IN)).astype(np.float32)
    alone = [product(set_name, type_name, 1, rows[i : i + 1])[0][0] for i in range(max(WIDTHS))]
    for m in WIDTHS:
        got, want = product(set_name, type_name, m, np.ascontiguousarray(rows[:m]))
        assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)
        assert np.array_equal(got, np.array(alone[:m])), "bits depend on the number of rows"


@pytest.mark.parametrize("set_name", SPLITTING)
@pytest.mark.parametrize("type_name", [*FORMATS, *EXPANDED_TYPES])
@pytest.mark.slow
def test_products_of_blocks_with_two_scales(type_name: str, set_name: str) -> None:
    rows = np.random.default_rng(1).standard_normal((max(WIDTHS), N_IN)).astype(np.float32)
    rows[:, 3::64] *= 40  # so that the scales are far apart
    alone = [
        product(set_name, type_name, 1, rows[i : i + 1], split=True)[0][0]
        for i in range(max(WIDTHS))
    ]
    for m in WIDTHS:
        got, want = product(set_name, type_name, m, np.ascontiguousarray(rows[:m]), split=True)
        assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)
        assert np.array_equal(got, np.array(alone[:m])), "bits depend on the number of rows"


@pytest.mark.parametrize("set_name", SET_NAMES)
def test_only_valid_outputs_are_written(set_name: str) -> None:
    x = np.random.default_rng(2).standard_normal((4, N_IN)).astype(np.float32)
    whole, _ = product(set_name, "Q4_K", 4, x)
    part, _ = product(set_name, "Q4_K", 4, x, n_valid=5)
    assert np.array_equal(part[:, :5], whole[:, :5])
    assert (part[:, 5:] == 7).all()


@pytest.mark.parametrize("weighs_pairs", [False, True])
@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_K", "IQ4_XS"])
def test_sets_agree(type_name: str, weighs_pairs: bool) -> None:
    """Integer sums are the same in all that round activations alike; only the float additions may
    round otherwise."""
    x = np.random.default_rng(3).standard_normal((1, N_IN)).astype(np.float32)
    names = [name for name in SET_NAMES if SETS[name]().weighs_pairs == weighs_pairs]
    results = [product(name, type_name, 1, x)[0] for name in names]
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("type_name", [t for t in FORMATS if t not in ("F32", "F16", "BF16")])
def test_repacked_bytes_are_close_to_the_files(type_name: str) -> None:
    form, stored = FORMATS[type_name], find_format(type_name)
    n_bytes = 16 * 256 // form.span * (form.quant_bytes + form.scale_bytes) // 16
    assert n_bytes <= 1.03 * stored.n_bytes(256) * 16


def test_expanded_is_for_the_rest() -> None:
    for made in SETS.values():
        assert find_tile_format("IQ2_XS", made()) is EXPANDED
        assert find_tile_format("Q4_0", made()) is FORMATS["Q4_0"]
        looks_up = find_tile_format("IQ4_NL", made()) is FORMATS["IQ4_NL"]
        assert looks_up == (made.name not in ("ssse3", "generic"))
