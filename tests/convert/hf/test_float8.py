"""Float8 weights with scales of every form, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nextn.convert.checkpoint.folder import Folder
from nextn.convert.checkpoint.safetensors import read_tensors
from nextn.convert.hf.matrix_rows import StoredMatrix
from nextn.convert.hf.model_config import ModelConfig
from nextn.convert.hf.stored_names import sort_tensors

BLOCK = (16, 24)
# Shapes of weight and scale; rows times columns of the fourth are also its number of scales.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "block": ((40, 60), (3, 3)),
    "whole-blocks": ((32, 48), (2, 2)),
    "row": ((40, 60), (40, 1)),
    "flat-rows": ((40, 60), (40,)),
    "as-many-blocks-as-rows": ((32, 384), (2, 16)),
    "scalar": ((40, 60), ()),
    "one": ((40, 60), (1,)),
    "stacked": ((3, 40, 60), (3, 3, 3)),
    "stacked-rows": ((3, 40, 60), (3, 40, 1)),
    "stacked-one-each": ((3, 40, 60), (3, 1, 1)),
}


def saved(folder: Path, weight: torch.Tensor, scale: torch.Tensor, suffix: str) -> StoredMatrix:
    save_file({"x.weight": weight, f"x.weight{suffix}": scale}, folder / "m.safetensors")
    tensors, _ = read_tensors(Folder(folder).open("m.safetensors"))
    settings: dict[str, Any] = {"quantization_config": {"weight_block_size": list(BLOCK)}}
    return sort_tensors(tensors, ModelConfig("it", settings)).matrices["x.weight"]


def spread(scale: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """One scale per number."""
    if scale.numel() == 1:
        return scale.reshape(()).expand(shape)
    if scale.ndim == 1:
        scale = scale[:, None]
    rows = 1 if scale.shape[-2] == shape[-2] else BLOCK[0]
    rows = shape[-2] if scale.shape[-2] == 1 else rows
    columns = shape[-1] if scale.shape[-1] == 1 else BLOCK[1]
    whole = scale.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return whole[..., : shape[-2], : shape[-1]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
def test_scales(case: str, suffix: str, tmp_path: Path) -> None:
    shape, scale_shape = CASES[case]
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(scale_shape, generator=generator) + 0.1
    want = (weight.float() * spread(scale, shape)).reshape(-1, shape[-1]).numpy()
    matrix = saved(tmp_path, weight, scale, suffix)
    assert np.array_equal(matrix.floats(0, matrix.n_rows), want)
    for first in range(0, matrix.n_rows, 7):
        last = min(first + 7, matrix.n_rows)
        assert np.array_equal(matrix.floats(first, last), want[first:last])


def test_bare_exponents_as_scales(tmp_path: Path) -> None:
    weight = torch.randn(32, 48).to(torch.float8_e5m2)
    scale = torch.tensor([[0.5, 2.0], [0.25, 1.0]]).to(torch.float8_e8m0fnu)
    want = weight.float() * spread(scale.float(), (32, 48))
    assert np.array_equal(saved(tmp_path, weight, scale, "_scale_inv").floats(0, 32), want.numpy())
