"""The quantisers: what they write reads back near to what went in, whatever that was."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize
from numpy.typing import NDArray

from nextn.convert.quantize.native_quantizer import QUANTISED, WIDENERS, NativeQuantizer
from nextn.core.backend.cpu.simd import SETS
from nextn.core.gguf.quants import dequantize, find_format

Floats = NDArray[np.float32]
# Of gaussian weights, in units of their own size; a little above what is reached.
GAUSSIAN = {
    "Q4_0": 0.082, "Q4_1": 0.0705, "Q5_0": 0.041, "Q5_1": 0.0345, "Q8_0": 0.0054,
    "IQ4_NL": 0.0745, "MXFP4": 0.1135, "Q2_K": 0.2645, "Q3_K": 0.1457, "Q4_K": 0.0704,
    "Q5_K": 0.0352, "Q6_K": 0.0171, "IQ4_XS": 0.075, "IQ1_S": 0.4545, "IQ1_M": 0.4205,
    "IQ2_XXS": 0.3315, "IQ2_XS": 0.29, "IQ2_S": 0.242, "IQ3_XXS": 0.1811, "IQ3_S": 0.1317,
    "TQ1_0": 0.44, "TQ2_0": 0.44,
}  # fmt: skip

# Of weights of all shapes, at most: a large one beside small ones takes their scale.
FEW_BITS = {
    "IQ1_S": 0.55, "IQ1_M": 0.45, "IQ2_XXS": 0.75, "IQ2_XS": 0.62, "IQ2_S": 0.62, "IQ3_XXS": 0.4,
    "IQ3_S": 0.37, "TQ1_0": 0.45, "TQ2_0": 0.45,
}  # fmt: skip


@pytest.fixture(scope="module")
def native() -> NativeQuantizer:
    return NativeQuantizer(QUANTISED)


def gaussian(n_rows: int, width: int = 512, scale: float = 0.02, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n_rows, width)) * scale).astype(np.float32)


def stored(
    native: NativeQuantizer, kind: str, rows: Floats, columns: Floats | None = None
) -> Floats:
    form = find_format(kind)
    out = np.full(form.n_bytes(rows.size), 0xAA, np.uint8)
    native.quantize(form, rows, columns, out)
    assert np.array_equal(
        dequantize(out, form, rows.shape),
        gguf_dequantize(out.reshape(rows.shape[0], -1), gguf.GGMLQuantizationType[kind]),
    )
    return dequantize(out, form, rows.shape)


def error(rows: Floats, back: Floats, weights: Floats | float = 1.0) -> float:
    """Relative."""
    squares = weights * (back - rows).astype(np.float64) ** 2
    return float(np.sqrt(squares.sum() / (weights * rows.astype(np.float64) ** 2).sum()))


@pytest.mark.parametrize("kind", QUANTISED)
def test_gaussian_weights(kind: str, native: NativeQuantizer) -> None:
    rows = gaussian(32)
    found = error(rows, stored(native, kind, rows))
    assert 0.95 * GAUSSIAN[kind] < found < GAUSSIAN[kind]


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("n_blocks", [1, 2, 15, 16, 17, 33])
def test_blocks_do_not_depend_on_their_neighbours(
    kind: str, n_blocks: int, native: NativeQuantizer
) -> None:
    """Sixteen are done at once; the last ones may be fewer."""
    form = find_format(kind)
    rows = gaussian(n_blocks, form.block_size)
    together = stored(native, kind, rows)
    alone = np.concatenate([stored(native, kind, rows[n : n + 1]) for n in range(n_blocks)])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("kind", QUANTISED)
def test_zeros_stay_zeros(kind: str, native: NativeQuantizer) -> None:
    rows = gaussian(4)
    rows[1] = 0
    rows[2, 256:] = -0.0
    back = stored(native, kind, rows)
    assert not back[1].any()
    assert not back[2, 256:].any()
    assert back[0].any()


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("value", [0.5, -0.5, 3e-2, -1000.0])
def test_a_constant_is_kept(kind: str, value: float, native: NativeQuantizer) -> None:
    """MXFP4 can miss by a fifth, as from 5 to 4 or 6; the others have a scale to fit."""
    back = stored(native, kind, np.full((2, 512), value, np.float32))
    tolerance = 0.21 if kind == "MXFP4" else 0.02
    np.testing.assert_allclose(back, value, rtol=tolerance)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize(
    "shape", ["positive", "negative", "shifted", "outlier", "sparse", "tiny", "large", "ramp"]
)
def test_odd_weights_are_finite_and_near(kind: str, shape: str, native: NativeQuantizer) -> None:
    rows = {
        "positive": np.abs(gaussian(8)),
        "negative": -np.abs(gaussian(8)),
        "shifted": gaussian(8) + 1,
        "outlier": np.where(np.arange(512) % 256 == 7, 5, gaussian(8)),
        "sparse": np.where(np.arange(512) % 64 == 7, gaussian(8), 0),
        "tiny": gaussian(8, scale=1e-30),
        "large": np.clip(gaussian(8, scale=2e4), -6e4, 6e4),
        "ramp": np.tile(np.linspace(-1, 1, 512, dtype=np.float32), (8, 1)),
    }[shape].astype(np.float32)
    back = stored(native, kind, rows)
    assert np.isfinite(back).all()
    if shape == "tiny":  # less than half floats can say
        assert np.abs(back).max() <= 1e-20
    else:
        # Four levels that begin at zero or below are few for weights that do not.
        assert error(rows, back) < {"Q2_K": 0.5, **FEW_BITS}.get(kind, 0.25)


@pytest.mark.parametrize("kind", [kind for kind in QUANTISED if kind not in ("Q8_0", "MXFP4")])
def test_importance_moves_the_error_to_where_it_matters_less(
    kind: str, native: NativeQuantizer
) -> None:
    rows = gaussian(32)
    columns = np.where(np.arange(512) % 4 == 0, 20.0, 0.2).astype(np.float32)
    with_it, without = stored(native, kind, rows, columns), stored(native, kind, rows)
    gain = 0.99 if kind.startswith("TQ") else 0.97  # one scale for 256 elements
    assert error(rows, with_it, columns) < gain * error(rows, without, columns)
    assert error(rows, with_it) > error(rows, without)


@pytest.mark.parametrize("kind", QUANTISED)
def test_columns_of_no_importance_at_all(kind: str, native: NativeQuantizer) -> None:
    columns = np.zeros(512, np.float32) + np.float32(1e-6)
    columns[:32] = 1
    assert np.isfinite(stored(native, kind, gaussian(4), columns)).all()


@pytest.mark.parametrize("kind", ["Q8_0"])
def test_the_same_bytes_as_others(kind: str, native: NativeQuantizer) -> None:
    rows, form = gaussian(16), find_format(kind)
    out = np.zeros(form.n_bytes(rows.size), np.uint8)
    native.quantize(form, rows, None, out)
    theirs = gguf_quantize(rows, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(out, theirs.reshape(-1))


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "IQ4_XS", "MXFP4", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("name", [name for name, kind in SETS.items() if kind.is_available()])
def test_every_instruction_set_is_as_good(kind: str, name: str, native: NativeQuantizer) -> None:
    rows = gaussian(8)
    plain = NativeQuantizer([kind], simd=SETS[name]())
    ratio = error(rows, stored(plain, kind, rows)) / error(rows, stored(native, kind, rows))
    assert 0.999 < ratio < 1.001


@pytest.mark.parametrize("kind", WIDENERS)
@pytest.mark.parametrize("bad", [None, np.inf, -np.inf, np.nan])
def test_widening_sees_what_is_no_number(
    kind: str, bad: float | None, native: NativeQuantizer
) -> None:
    values = gaussian(1, 64)[0]
    values[37] = -3
    if bad is not None:
        values[11] = bad
    form = find_format(kind)
    raw = {
        "F32": values.view(np.uint8),
        "F16": values.astype(np.float16).view(np.uint8),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
    }[kind]
    wide = np.empty(64, np.float32)
    largest = native.widen(kind, raw, wide)
    assert np.array_equal(wide, dequantize(raw, form, (64,)), equal_nan=True)
    assert (largest == 3) if bad is None else not np.isfinite(largest)
