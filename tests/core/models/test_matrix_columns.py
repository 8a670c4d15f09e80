"""Matrices that a file keeps side by side in one are taken apart between blocks, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nextn.core.errors import ModelError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf
from nextn.core.models.model_weights import Inventory, Weights

N_OUT = 3
F32 = find_format("F32")


def weights_of(path: Path, kind: str, width: int) -> Weights:
    """A matrix of random bytes, in whose scales no float is infinite, and its bias."""
    form = find_format(kind)
    data = np.random.default_rng(1).integers(0, 60, form.n_bytes(N_OUT * width)).astype(np.uint8)
    bias = np.arange(N_OUT, dtype=np.float32)
    tensors = [
        TensorData("both.weight", (N_OUT, width), form, data),
        TensorData("both.bias", bias.shape, F32, bias),
    ]
    write_gguf(path, {"general.architecture": "x"}, tensors)
    return Weights(open_gguf(path), Inventory())


@pytest.mark.parametrize(
    ("kind", "widths"),
    [
        ("F32", [5, 3]),
        ("F16", [4, 4]),
        ("Q8_0", [64, 32]),
        ("Q4_0", [32, 32]),
        ("Q4_K", [512, 256]),
    ],
)
def test_parts_are_those_of_the_whole(kind: str, widths: list[int], tmp_path: Path) -> None:
    weights = weights_of(tmp_path / "x.gguf", kind, sum(widths))
    weights.columns("both", N_OUT, widths)
    weights.check()
    inventory = weights.backend
    assert isinstance(inventory, Inventory)
    parts = [part for (part,) in inventory.matrices]
    whole = weights.file.tensors["both.weight"].floats()
    np.testing.assert_array_equal(
        np.concatenate([part.tensor.floats() for part in parts], axis=1), whole
    )
    assert [part.tensor.shape for part in parts] == [(N_OUT, width) for width in widths]
    assert [part.bias is None for part in parts] == [False, True]
    assert len({part.tensor.name for part in parts}) == len(parts)


def test_a_cut_within_a_block_is_refused(tmp_path: Path) -> None:
    weights = weights_of(tmp_path / "x.gguf", "Q4_K", 256)
    with pytest.raises(ModelError, match=r"both\.weight has Q4_K blocks of 256 columns.* at 128"):
        weights.columns("both", N_OUT, [128, 128])


def test_what_is_missing_is_found(tmp_path: Path) -> None:
    weights = weights_of(tmp_path / "x.gguf", "F32", 8)
    assert weights.columns("other", N_OUT, [4, 4]) == [None, None]
    weights.columns("both", N_OUT, [4, 5])
    with pytest.raises(ModelError, match="missing tensors: other"):
        weights.check()
    assert len(weights.findings.misshapen) == 1
