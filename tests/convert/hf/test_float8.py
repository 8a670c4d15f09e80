"""Float8 weights with scales of every form, against torch."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.converting import convert
from support.hub_checkpoints import build_hub_checkpoint

from nextn.convert.checkpoint.folder import Folder
from nextn.convert.checkpoint.safetensors import read_tensors
from nextn.convert.hf.matrix_rows import StoredMatrix
from nextn.convert.hf.model_config import ModelConfig
from nextn.convert.hf.stored_names import sort_tensors
from nextn.core.gguf.reader import open_gguf

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


def test_queries_keys_and_values_of_parallel_ranks(tmp_path: Path) -> None:
    """MiMo: each of four ranks has its rows of all three, with a factor of its own."""
    made = build_hub_checkpoint("mimo2-fused", tmp_path)
    path = made.folder / "model.safetensors"
    state, want = load_file(path), {}
    for name in [name for name in state if name.endswith("qkv_proj.weight")]:
        plain = state[name]
        n_kv = (len(plain) - 96) // 40  # heads of keys, 24 wide, and values, 16 wide
        parts = [part.chunk(4) for part in plain.split([96, n_kv * 24, n_kv * 16])]
        ranks = [torch.cat([part[rank] for part in parts]) for rank in range(4)]
        scales = torch.stack([rank.abs().max()[None] / 448 for rank in ranks])
        codes = [
            (rank / scale).to(torch.float8_e4m3fn)
            for rank, scale in zip(ranks, scales, strict=True)
        ]
        state[name], state[f"{name}_scale_inv"] = torch.cat(codes), scales
        read = [code.float() * scale for code, scale in zip(codes, scales, strict=True)]
        bounds = [0, 24, 24 + n_kv * 6, 24 + n_kv * 10]
        want[name] = torch.cat(
            [rank[a:b] for a, b in itertools.pairwise(bounds) for rank in read]
        ).numpy()
    save_file(state, path)
    ours = open_gguf(convert(made.folder, tmp_path / "out.gguf"))
    assert len(want) == 6
    for name, values in want.items():
        number = int(name.split("layers.")[1].split(".")[0]) + (3 if ".mtp." in name else 0)
        got = ours.tensors[f"blk.{number}.attn_qkv.weight"].floats()
        assert np.array_equal(got, values)


def test_the_latent_matrix_of_deepseek(tmp_path: Path) -> None:
    """Its keys are turned behind the factors of the blocks that they were stored in."""
    made = build_hub_checkpoint("deepseek-v3", tmp_path)
    name = "model.layers.0.self_attn.kv_b_proj.weight"
    path = made.folder / "model-00001-of-00002.safetensors"
    state = load_file(path)
    scales = torch.rand(-(-128 // 48), 1) + 0.5
    codes = state[name].to(torch.float8_e4m3fn)
    read = codes.float() * scales.repeat_interleave(48, 0)[:128]
    state[name], state[f"{name}_scale_inv"] = codes, scales
    save_file(state, path)
    config = json.loads((made.folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [48, 48]}
    (made.folder / "config.json").write_text(json.dumps(config))
    ours = open_gguf(convert(made.folder, tmp_path / "out.gguf"))
    per_head = read.reshape(4, 32, 32).numpy()
    keys, values = (ours.tensors[f"blk.0.attn_{kind}_b.weight"].floats() for kind in "kv")
    assert np.array_equal(keys, per_head[:, :16].swapaxes(1, 2))
    assert np.array_equal(values, per_head[:, 16:])
