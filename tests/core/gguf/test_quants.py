"""Every dequantiser is bit-equal to the `gguf` package; the rest to their formulas."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from gguf import quants as oracle
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from nextn.core.gguf import quants
from nextn.core.gguf.quants import FORMATS, REMOVED, BlockFormat, dequantize, find_format

# Types that the package does not dequantise: activations, plain numbers, and the newest.
WITHOUT_ORACLE = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "Q1_0", "Q2_0"}
WITH_ORACLE = [fmt for fmt in FORMATS.values() if fmt.name not in WITHOUT_ORACLE]
WITH_HALF_SCALE_AT = {"Q4_0": 0, "Q4_1": 2, "Q6_K": 208, "Q2_K": 80, "IQ3_S": 0, "TQ1_0": 52}


def random_blocks(fmt: BlockFormat, n_blocks: int, seed: int = 0) -> NDArray[np.uint8]:
    """Any bytes at all, so that scales are also negative, subnormal, infinite and NaN."""
    rng = np.random.default_rng([seed, fmt.type_id])
    return rng.integers(0, 256, (n_blocks, fmt.block_bytes), dtype=np.uint8)


def assert_same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Bit-equal, the sign of zero included; any NaN equals any NaN."""
    assert ours.dtype == theirs.dtype == np.float32
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


@pytest.mark.parametrize("fmt", WITH_ORACLE, ids=lambda fmt: fmt.name)
def test_bit_equal_to_the_gguf_package(fmt: BlockFormat) -> None:
    blocks = random_blocks(fmt, 2000)
    with np.errstate(all="ignore"):
        theirs = oracle.dequantize(blocks, GGMLQuantizationType(fmt.type_id))
    ours = dequantize(blocks.reshape(-1), fmt, (2000, fmt.block_size))
    assert_same_bits(ours, np.asarray(theirs, np.float32).reshape(ours.shape))
    assert np.isfinite(ours).sum() > ours.size // 2  # or the comparison would prove little


@pytest.mark.parametrize(("name", "start"), WITH_HALF_SCALE_AT.items())
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 6e-8, -0.0, 65504])
def test_extreme_scales_raise_no_warning(name: str, start: int, scale: float) -> None:
    fmt = find_format(name)
    blocks = random_blocks(fmt, 64)
    blocks[:, start : start + 2] = np.array([scale], "<f2").view(np.uint8)
    with np.errstate(all="raise"):
        ours = dequantize(blocks.reshape(-1), fmt, (64 * fmt.block_size,))
    with np.errstate(all="ignore"):
        theirs = oracle.dequantize(blocks, GGMLQuantizationType(fmt.type_id))
    assert_same_bits(ours, theirs.reshape(-1))


def test_table_agrees_with_the_package() -> None:
    known = {int(kind): (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}
    # The package counts two float32 in Q8_1; ggml has two halves. No file stores it.
    del known[int(GGMLQuantizationType.Q8_1)]
    for type_id, wanted in known.items():
        fmt = FORMATS[type_id]
        assert (fmt.name, fmt.block_size, fmt.block_bytes) == wanted
    assert not REMOVED.keys() & FORMATS.keys()


def test_every_format_is_found_by_name() -> None:
    for type_id, fmt in FORMATS.items():
        assert fmt.type_id == type_id
        assert find_format(fmt.name.lower()) is fmt
    with pytest.raises(KeyError):
        find_format("Q9_9")


def halves(*values: float) -> bytes:
    return np.array(values, "<f2").tobytes()


@pytest.mark.parametrize(
    ("name", "block", "wanted"),
    [
        ("Q1_0", halves(0.5) + b"\x05" + bytes(15), [0.5, -0.5, 0.5] + [-0.5] * 125),
        ("Q2_0", halves(2) + b"\xe4" + b"\x55" * 15, [-2, 0, 2, 4] + [0] * 60),
        ("Q8_1", halves(0.5, 9) + b"\xfe" + bytes(31), [-1] + [0] * 31),
        (
            "Q8_K",
            np.float32(0.25).tobytes() + b"\x80\x04" + bytes(254 + 32),
            [-32, 1] + [0] * 254,
        ),
        ("I8", b"\xff", [-1]),
        ("I16", b"\x00\x80", [-32768]),
        ("I32", b"\xfe\xff\xff\xff", [-2]),
        ("I64", b"\x07" + bytes(7), [7]),
        ("F64", np.float64(1e300).tobytes(), [np.inf]),
        ("F64", np.float64(0.1).tobytes(), [np.float32(0.1)]),
    ],
)
def test_formats_that_the_package_lacks(name: str, block: bytes, wanted: list[float]) -> None:
    fmt = find_format(name)
    got = dequantize(np.frombuffer(block, np.uint8), fmt, (fmt.block_size,))
    assert got.tolist() == wanted


@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_K", "IQ2_XS"])
def test_chunks_do_not_change_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = find_format(name)
    data = random_blocks(fmt, 37).reshape(-1)
    whole = dequantize(data, fmt, (37, fmt.block_size))
    monkeypatch.setattr(quants, "_CHUNK_ELEMENTS", 4 * fmt.block_size)
    assert_same_bits(dequantize(data, fmt, (37, fmt.block_size)), whole)


@pytest.mark.parametrize("name", ["F32", "BF16", "Q4_0", "Q3_K", "IQ1_M"])
def test_temporaries_stay_small(name: str) -> None:
    fmt = find_format(name)
    n_elements = 1 << 22
    data = np.zeros(fmt.n_bytes(n_elements), np.uint8)
    tracemalloc.start()
    try:
        out = dequantize(data, fmt, (n_elements,))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - out.nbytes < 16_000_000


def test_result_is_the_callers() -> None:
    data = np.arange(8, dtype=np.float32)
    data.flags.writeable = False
    out = dequantize(data.view(np.uint8), find_format("F32"), (2, 4))
    out += 1
    assert data[0] == 0


@pytest.mark.parametrize("shape", [(33,), (64,), (2, 16, 2)])
def test_wrong_size_is_a_bug_of_the_caller(shape: tuple[int, ...]) -> None:
    fmt = find_format("Q8_0")
    with pytest.raises(ValueError, match="cannot have shape"):
        dequantize(np.zeros(34, np.uint8), fmt, shape)


def test_no_elements() -> None:
    out = dequantize(np.zeros(0, np.uint8), find_format("Q8_0"), (0, 32))
    assert out.shape == (0, 32)
