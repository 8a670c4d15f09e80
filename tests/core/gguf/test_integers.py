"""Integer times scale is the dequantised value, to the last bit, for any bytes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from nextn.core.gguf import integers
from nextn.core.gguf.integers import (
    INTEGER_TYPES,
    LEVEL_TYPES,
    RUN,
    to_integers,
    to_levels,
)
from nextn.core.gguf.quants import dequantize, find_format

TYPES = sorted(INTEGER_TYPES)
# Byte of the float16 scale, where the block has exactly one.
HALF_SCALE_AT = {
    "IQ1_S": 0, "IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0, "IQ3_XXS": 0, "IQ3_S": 0,
    "TQ1_0": 52, "TQ2_0": 64, "Q1_0": 0, "Q2_0": 0, "Q8_1": 0,
}  # fmt: skip


def random_blocks(name: str, n_blocks: int, seed: int = 0) -> NDArray[np.uint8]:
    fmt = find_format(name)
    rng = np.random.default_rng([seed, fmt.type_id])
    return rng.integers(0, 256, (n_blocks, fmt.block_bytes), dtype=np.uint8)


def assert_same_bits(ours: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


def assert_exact(name: str, blocks: NDArray[np.uint8]) -> None:
    fmt = find_format(name)
    whole, scales = to_integers(blocks, name)
    assert whole.dtype == np.int8
    assert scales.dtype == np.float32
    assert whole.shape == (len(blocks), fmt.block_size)
    assert scales.shape == (len(blocks), fmt.block_size // RUN)
    runs = whole.reshape(*scales.shape, RUN).astype(np.float32)
    with np.errstate(all="ignore"):
        product = (runs * scales[:, :, None]).reshape(whole.shape)
    assert_same_bits(product, dequantize(blocks.reshape(-1), fmt, whole.shape))


@pytest.mark.parametrize("name", TYPES)
def test_product_is_bit_equal_on_random_bytes(name: str) -> None:
    assert_exact(name, random_blocks(name, 2500))


@pytest.mark.parametrize("name", HALF_SCALE_AT)
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 6e-8, -6e-8, 0.0, -0.0, 65504])
def test_extreme_scales_are_exact_too(name: str, scale: float) -> None:
    blocks = random_blocks(name, 64, seed=1)
    start = HALF_SCALE_AT[name]
    blocks[:, start : start + 2] = np.array([scale], "<f2").view(np.uint8)
    with np.errstate(all="raise"):
        to_integers(blocks, name)
    assert_exact(name, blocks)


def test_every_scale_code_of_nvfp4() -> None:
    blocks = random_blocks("NVFP4", 256)
    blocks[:, :4] = np.arange(256, dtype=np.uint8)[:, None]
    assert_exact("NVFP4", blocks)


def test_integers_use_the_range_they_should() -> None:
    limits = {"IQ1_S": 9, "IQ2_XS": 43, "IQ3_S": 15, "TQ2_0": 2, "NVFP4": 12, "Q1_0": 1, "Q2_0": 2}
    for name, limit in limits.items():
        whole, _ = to_integers(random_blocks(name, 500), name)
        assert np.abs(whole.astype(int)).max() == limit


@pytest.mark.parametrize("name", ["IQ2_XS", "TQ1_0", "NVFP4"])
def test_chunks_and_strides_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = random_blocks(name, 74)
    whole = to_integers(np.ascontiguousarray(blocks[::2]), name)
    monkeypatch.setattr(integers, "_CHUNK_ELEMENTS", 4 * find_format(name).block_size)
    parts = to_integers(blocks[::2], name)
    np.testing.assert_array_equal(parts[0], whole[0])
    assert_same_bits(parts[1], whole[1])


@pytest.mark.parametrize("name", ["IQ1_M", "IQ3_XXS", "TQ1_0", "Q1_0"])
def test_temporaries_stay_small(name: str) -> None:
    fmt = find_format(name)
    blocks = np.zeros(((1 << 22) // fmt.block_size, fmt.block_bytes), np.uint8)
    tracemalloc.start()
    try:
        whole, scales = to_integers(blocks, name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - whole.nbytes - scales.nbytes < 16_000_000


def test_input_is_left_alone_and_may_be_read_only() -> None:
    for name in TYPES:
        blocks = random_blocks(name, 3)
        before = blocks.copy()
        blocks.flags.writeable = False
        to_integers(blocks, name)
        np.testing.assert_array_equal(blocks, before)


def test_wrong_calls_are_the_callers_mistake() -> None:
    with pytest.raises(KeyError):
        to_integers(random_blocks("Q4_K", 1), "Q4_K")
    with pytest.raises(ValueError, match="cannot have shape"):
        to_integers(np.zeros((2, 65), np.uint8), "IQ2_XXS")
    empty, scales = to_integers(np.zeros((0, 66), np.uint8), "IQ2_XXS")
    assert (empty.shape, scales.shape) == ((0, 256), (0, 16))


@pytest.mark.parametrize("name", sorted(LEVEL_TYPES))
def test_levels_times_one_number_are_the_scales(name: str) -> None:
    """Any bytes, and scales that are no numbers or nothing."""
    blocks = random_blocks(name, 700)
    if name in HALF_SCALE_AT:
        for i, scale in enumerate((np.nan, np.inf, -np.inf, 6e-8, 0.0, -0.0)):
            blocks[i::100, :2] = np.array([scale], "<f2").view(np.uint8)
    codes, levels, unit = to_levels(blocks, name)
    assert levels.shape == (700, 16)
    with np.errstate(all="ignore"):
        scales = unit[:, None] * levels.astype(np.float32)
        product = codes.reshape(700, 16, RUN).astype(np.float32) * scales[..., None]
    fmt = find_format(name)
    assert_same_bits(product.reshape(700, 256), dequantize(blocks.reshape(-1), fmt, (700, 256)))
