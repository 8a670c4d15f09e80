"""The scan for NaN and infinity agrees with dequantising everything."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from nextn.core.gguf import non_finite
from nextn.core.gguf.non_finite import SUSPECTS, find_non_finite
from nextn.core.gguf.quants import FORMATS, BlockFormat, find_format
from nextn.core.gguf.tensors import Tensor

ALWAYS_FINITE = {"I8", "I16", "I32", "I64", "NVFP4"}
SCANNED = [fmt for fmt in FORMATS.values() if fmt.name not in ALWAYS_FINITE]


def tensor_of(data: NDArray[np.uint8], fmt: BlockFormat) -> Tensor:
    flat = np.ascontiguousarray(data).reshape(-1)
    return Tensor("t", (flat.size // fmt.block_bytes * fmt.block_size,), fmt, flat)


def first_bad(tensor: Tensor) -> int | None:
    """By brute force."""
    bad = np.flatnonzero(~np.isfinite(tensor.floats()))
    return int(bad[0]) if bad.size else None


def random_blocks(fmt: BlockFormat, n_blocks: int, seed: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng([seed, fmt.type_id])
    return rng.integers(0, 256, (n_blocks, fmt.block_bytes), dtype=np.uint8)


def test_every_format_is_scanned_or_cannot_be_bad() -> None:
    assert {fmt.name for fmt in FORMATS.values()} == SUSPECTS.keys() | ALWAYS_FINITE


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_random_bytes(fmt: BlockFormat) -> None:
    found = set()
    for seed in range(60):
        tensor = tensor_of(random_blocks(fmt, 1 + seed, seed), fmt)
        assert find_non_finite(tensor) == first_bad(tensor)
        found.add(first_bad(tensor) is None)
    assert (True in found) or fmt.name in {"F32", "F16", "BF16"} or len(found) == 1


@pytest.mark.parametrize("fmt", SCANNED, ids=lambda fmt: fmt.name)
def test_tensor_full_of_ones_bits(fmt: BlockFormat) -> None:
    tensor = tensor_of(np.full((3, fmt.block_bytes), 0xFF, np.uint8), fmt)
    assert first_bad(tensor) == find_non_finite(tensor) == 0


@pytest.mark.parametrize("fmt", SCANNED, ids=lambda fmt: fmt.name)
def test_one_bad_block_among_zeros(fmt: BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(non_finite, "_CHUNK_BYTES", 7 * fmt.block_bytes)
    blocks = np.zeros((50, fmt.block_bytes), np.uint8)
    assert find_non_finite(tensor_of(blocks, fmt)) is None
    blocks[33] = 0xFF
    assert find_non_finite(tensor_of(blocks, fmt)) == 33 * fmt.block_size


def test_large_but_finite_values_are_innocent() -> None:
    values = np.full(10_000, 1e38, "<f8")
    values[-1] = 1e39  # infinite as float32
    tensor = tensor_of(values.view(np.uint8), find_format("F64"))
    assert find_non_finite(tensor) == 9_999


def test_mxfp4_needs_a_large_code_to_overflow() -> None:
    block = np.zeros((2, 17), np.uint8)
    block[:, 0] = 253  # 2^125, times 12 is too much
    block[1, 3] = 0x70
    tensor = tensor_of(block, find_format("MXFP4"))
    assert find_non_finite(tensor) == first_bad(tensor) == 32 + 16 + 2


def test_empty_tensor() -> None:
    assert find_non_finite(tensor_of(np.zeros(0, np.uint8), find_format("Q4_0"))) is None
