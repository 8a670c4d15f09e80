"""Importance matrices: both formats, sizes, and files that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.quantize_families import write_importance
from support.thoroughness import n_examples

from nextn.convert.quantize.imatrix import read_importance
from nextn.core.errors import FileFormatError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.writer import TensorData, write_gguf

NAME = "blk.0.ffn_down.weight"


def legacy(entries: dict[str, NDArray[np.float32]], n_calls: int = 4) -> bytes:
    parts = [struct.pack("<i", len(entries))]
    for name, values in entries.items():
        raw = name.encode()
        parts += [struct.pack("<i", len(raw)), raw, struct.pack("<ii", n_calls, values.size)]
        parts.append(values.astype("<f4").tobytes())
    return b"".join(parts) + struct.pack("<ii", 60, 8) + b"text.txt"


def write_sums(path: Path, sums: NDArray[np.float32], counts: NDArray[np.float32]) -> Path:
    form = find_format("F32")
    tensors = [
        TensorData(f"{NAME}.in_sum2", sums.shape, form, sums),
        TensorData(f"{NAME}.counts", counts.shape, form, counts),
    ]
    write_gguf(path, {"general.type": "imatrix"}, tensors, overwrite=True)
    return path


def test_both_formats_say_the_same(tmp_path: Path) -> None:
    sums = np.random.default_rng(0).chisquare(2, (1, 64)).astype(np.float32)
    new = read_importance(write_sums(tmp_path / "new", sums, np.full((1, 1), 4, np.float32)))
    (tmp_path / "old.dat").write_bytes(legacy({NAME: sums[0]}))
    old = read_importance(tmp_path / "old.dat")
    assert np.array_equal(new.values[NAME], old.values[NAME])
    np.testing.assert_allclose(new.values[NAME], sums / sums.mean(), rtol=1e-5, atol=2e-6)
    assert (old.n_chunks, old.datasets) == (60, ["text.txt"])


def test_experts_have_their_own_and_the_unused_none(tmp_path: Path) -> None:
    sums = np.arange(12, dtype=np.float32).reshape(3, 4)
    counts = np.array([[2], [0], [5]], np.float32)
    found = read_importance(write_sums(tmp_path / "f", sums, counts)).of(NAME, (3, 8, 4))
    assert found is not None
    np.testing.assert_allclose(found[1], 1, atol=1e-5)  # never used: all columns alike
    np.testing.assert_allclose(found[2], sums[2] / sums[2].mean(), rtol=1e-4)
    assert (found > 0).all()


def test_the_size_must_fit(tmp_path: Path) -> None:
    ones, one = np.ones((1, 64), np.float32), np.ones((1, 1), np.float32)
    importance = read_importance(write_sums(tmp_path / "f", ones, one))
    assert importance.of("other.weight", (4, 64)) is None
    with pytest.raises(FileFormatError, match="another model"):
        importance.of(NAME, (4, 32))


def test_a_token_table_of_another_size_is_passed_over(tmp_path: Path) -> None:
    path = write_importance(tmp_path / "f", {"token_embd.weight": (4, 32)})
    assert read_importance(path).of("token_embd.weight", (4, 64)) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_values_that_cannot_be(bad: float, tmp_path: Path) -> None:
    sums = np.ones((1, 64), np.float32)
    sums[0, 3] = bad
    path = write_sums(tmp_path / "f", sums, np.ones((1, 1), np.float32))
    with pytest.raises(FileFormatError, match="negative or no numbers"):
        read_importance(path)


def test_no_importance_in_a_model(tmp_path: Path) -> None:
    form = find_format("F32")
    write_gguf(tmp_path / "f", {"a": 1}, [TensorData("x", (1,), form, np.ones(1, np.float32))])
    with pytest.raises(FileFormatError, match="no importance matrix"):
        read_importance(tmp_path / "f")


@settings(max_examples=n_examples(200))
@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 255))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, value: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.dat"
    damaged = bytearray(legacy({NAME: np.ones(32, np.float32)}))
    damaged[at % len(damaged)] = value
    for data in (noise, bytes(damaged), bytes(damaged[: at % len(damaged)])):
        path.write_bytes(data)
        try:
            read_importance(path)
        except FileFormatError:
            continue
