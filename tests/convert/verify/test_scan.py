"""The scan of a file's numbers: what dequantising everything would find, by the scales alone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from nextn.convert.verify import scan
from nextn.convert.verify.scan import _SCALES, ABSURD_MATRIX, faults_of
from nextn.core.gguf.quants import FORMATS, BlockFormat, find_format
from nextn.core.gguf.tensors import Tensor

N_BLOCKS = 40
SCALED = [find_format(name) for name in _SCALES]
UNSCALED = {"F64", "Q8_1", "Q8_K", "IQ1_M", "MXFP4", "NVFP4", "I8", "I16", "I32", "I64"}


def tensor_of(blocks: NDArray[np.uint8], fmt: BlockFormat) -> Tensor:
    flat = np.ascontiguousarray(blocks).reshape(-1)
    return Tensor("t", (len(blocks), fmt.block_size), fmt, flat)


def random_tensor(fmt: BlockFormat, seed: int) -> Tensor:
    rng = np.random.default_rng([seed, fmt.type_id])
    blocks = rng.integers(0, 256, (N_BLOCKS, fmt.block_bytes), dtype=np.uint8)
    # Of random halves most are sound: make the scales small, but for a few.
    size = 4 if fmt.name == "F32" else 2
    for scale in _SCALES[fmt.name]:
        small = rng.random((N_BLOCKS, size)) < (0.995 if size == 2 else 1.0)
        top = scale.at + size - 1
        blocks[:, top] = np.where(small[:, -1], blocks[:, top] & 0xAB, blocks[:, top])
    return tensor_of(blocks, fmt)


def test_every_format_is_known() -> None:
    assert {fmt.name for fmt in FORMATS.values()} == _SCALES.keys() | UNSCALED


@pytest.mark.parametrize("fmt", SCALED, ids=lambda fmt: fmt.name)
def test_no_weight_is_beyond_its_bound(fmt: BlockFormat) -> None:
    """The bound is why reading scales is enough: nothing absurd hides below it."""
    for seed in range(40):
        tensor = random_tensor(fmt, seed)
        with np.errstate(all="ignore"):
            largest = np.abs(tensor.floats()).max()
        bound, _ = scan._largest(tensor, _SCALES[fmt.name])
        if np.isfinite(bound):
            assert largest <= bound * 1.001
        else:
            assert not np.isfinite(tensor.floats()).all() or bound == np.inf


@pytest.mark.parametrize("fmt", SCALED, ids=lambda fmt: fmt.name)
def test_one_absurd_block(fmt: BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "CHUNK_BYTES", 7 * fmt.block_bytes)
    rng = np.random.default_rng(fmt.type_id)
    blocks = rng.integers(0, 256, (N_BLOCKS, fmt.block_bytes), dtype=np.uint8)
    for scale in _SCALES[fmt.name]:
        _set(blocks, slice(None), scale, 2.0**-12)
    assert faults_of(tensor_of(blocks, fmt)) == (None, None)
    _set(blocks, 33, _SCALES[fmt.name][0], 60000.0)
    fault, _ = faults_of(tensor_of(blocks, fmt))
    values = np.abs(tensor_of(blocks, fmt).floats())
    assert values.max() > ABSURD_MATRIX
    assert fault is not None
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    assert row == 33
    assert f"holds {values.max():.3g} at [{row}, {column}]" in str(fault)


@pytest.mark.parametrize("fmt", SCALED, ids=lambda fmt: fmt.name)
def test_nan_and_infinity(fmt: BlockFormat) -> None:
    blocks = np.full((N_BLOCKS, fmt.block_bytes), 1, np.uint8)
    for value in (np.nan, np.inf, -np.inf):
        bad = blocks.copy()
        _set(bad, 21, _SCALES[fmt.name][-1], value)
        fault, _ = faults_of(tensor_of(bad, fmt))
        assert fault is not None
        assert "has NaN or infinity at [21, 0]" in str(fault)


def _set(
    blocks: NDArray[np.uint8], rows: slice | int, scale: scan.BlockScale, value: float
) -> None:
    kind: np.dtype[np.floating] = np.dtype("<f4" if scale.dtype in ("<u4", "bf16") else "<f2")
    with np.errstate(over="ignore"):
        raw = np.array([value], kind).view(np.uint8)
    raw = raw[2:] if scale.dtype == "bf16" else raw
    blocks[rows, scale.at : scale.at + len(raw)] = raw


def test_all_zero_is_strange_in_a_matrix_alone() -> None:
    fmt = find_format("Q8_0")
    fault, strange = faults_of(tensor_of(np.zeros((4, fmt.block_bytes), np.uint8), fmt))
    assert fault is None
    assert str(strange) == "tensor t is all zero"
    vector = Tensor("t", (32,), find_format("F32"), np.zeros(128, np.uint8))
    assert faults_of(vector) == (None, None)


def test_a_vector_may_hold_thousands() -> None:
    values = np.full(32, 5e4, np.float32)
    vector = Tensor("t", (32,), find_format("F32"), values.view(np.uint8))
    assert faults_of(vector) == (None, None)
    fault, _ = faults_of(Tensor("t", (1, 32), find_format("F32"), values.view(np.uint8)))
    assert fault is not None


@pytest.mark.parametrize(("name", "is_fault"), [("rope_freqs.weight", False), ("x.bias", True)])
def test_factors_of_rope_may_be_huge(name: str, is_fault: bool) -> None:
    values = np.array([1.0, 1e30], np.float32)
    tensor = Tensor(name, (2,), find_format("F32"), values.view(np.uint8))
    assert (faults_of(tensor)[0] is not None) == is_fault
    endless = Tensor(name, (1,), find_format("F32"), np.array([np.inf], "<f4").view(np.uint8))
    assert faults_of(endless)[0] is not None
