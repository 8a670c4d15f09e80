"""Ways in which checkpoints store weights: FP8 with scales, shards of ranks, packed integers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.attaching import attach_to, contents
from support.head_math import head_logits
from support.running import random_tokens
from support.tiny_heads import TinyHead, build_head

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.heads.checkpoint_weights import CheckpointWeights
from nextn.convert.heads.family_table import FAMILIES
from nextn.convert.heads.head_block import TargetStyle, read_block
from nextn.core.errors import ModelError

Edit = Callable[[dict[str, torch.Tensor]], None]
FP8 = torch.float8_e4m3fn
SECOND = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> TinyHead:
    return build_head("deepseek2", tmp_path_factory.mktemp("deepseek"))


def edited(head: TinyHead, folder: Path, edit: Edit, **config: Any) -> Path:
    """A copy of the checkpoint with other tensors in the file that has the head."""
    folder.mkdir()
    for path in head.checkpoint.iterdir():
        if path.name not in (SECOND, "model.safetensors.index.json", "config.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(head.checkpoint / SECOND)
    edit(tensors)
    save_file(tensors, folder / SECOND)
    described = json.loads((head.checkpoint / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def in_blocks(matrix: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 numbers and the scale of each block, and what they stand for goes back into `matrix`."""
    n_rows, n_columns = matrix.shape
    padded = torch.zeros(-(-n_rows // block) * block, -(-n_columns // block) * block)
    padded[:n_rows, :n_columns] = matrix
    blocks = padded.reshape(padded.shape[0] // block, block, -1, block)
    scales = blocks.abs().amax((1, 3)) / 448
    stored = (blocks / scales[:, None, :, None]).to(FP8)
    exact = stored.float() * scales[:, None, :, None]
    matrix.copy_(exact.reshape(padded.shape)[:n_rows, :n_columns])
    return stored.reshape(padded.shape)[:n_rows, :n_columns].contiguous(), scales


def to_fp8(tensors: dict[str, torch.Tensor], block: int) -> dict[str, torch.Tensor]:
    """All projections of the block; what they stand for, by name."""
    exact = {}
    for name in [n for n in tensors if "proj" in n and tensors[n].ndim == 2 and "eh_" not in n]:
        value = tensors[name].float()
        stored, scales = in_blocks(value, block)
        tensors[name], tensors[f"{name}_scale_inv"] = stored, scales
        exact[name] = value
    return exact


@pytest.mark.parametrize("block", [16, 24])  # one that divides the sizes, and one that does not
def test_fp8_with_block_scales(deepseek: TinyHead, tmp_path: Path, block: int) -> None:
    exact: dict[str, torch.Tensor] = {}
    stored = {"quant_method": "fp8", "weight_block_size": [block, block]}
    fp8 = edited(
        deepseek,
        tmp_path / "fp8",
        lambda tensors: exact.update(to_fp8(tensors, block)),
        quantization_config=stored,
    )
    plain = edited(deepseek, tmp_path / "plain", lambda tensors: tensors.update(exact))
    attach_to(deepseek.trunk, fp8, tmp_path / "a.gguf", "f32")
    attach_to(deepseek.trunk, plain, tmp_path / "b.gguf", "f32")
    assert len(exact) > 20
    assert contents(tmp_path / "a.gguf") == contents(tmp_path / "b.gguf")


def test_the_head_of_an_fp8_checkpoint_is_near_the_original(
    deepseek: TinyHead, tmp_path: Path
) -> None:
    """With two splits and a transposition behind the scales."""
    exact: dict[str, torch.Tensor] = {}
    fp8 = edited(deepseek, tmp_path / "fp8", lambda tensors: exact.update(to_fp8(tensors, 128)))
    attach_to(deepseek.trunk, fp8, tmp_path / "a.gguf", "f32")
    hidden = np.random.default_rng(0).normal(0, 1, (24, 64)).astype(np.float32)
    want = deepseek.logits(0, hidden, random_tokens(24))
    got = head_logits(tmp_path / "a.gguf", 0, hidden, random_tokens(24))
    # Most rows: a router that is undecided may choose another expert.
    assert 1e-4 < np.median(np.abs(got - want)) < 0.1


def test_scales_of_rows_and_of_a_whole_matrix(deepseek: TinyHead, tmp_path: Path) -> None:
    row, whole = "layers.2.self_attn.o_proj.weight", "layers.2.self_attn.q_a_proj.weight"
    exact = {}

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for end, name in (("row", f"model.{row}"), ("whole", f"model.{whole}")):
            scale = (
                torch.rand(len(tensors[name]), 1) + 0.5 if end == "row" else torch.tensor([0.25])
            )
            tensors[name] = (tensors[name] * 8).to(FP8)
            tensors[f"{name}_scale"] = scale
            exact[name] = tensors[name].float() * scale

    made = edited(deepseek, tmp_path / "a", edit)
    with open_checkpoint(made) as checkpoint:
        weights = CheckpointWeights(checkpoint)
        for name, value in exact.items():
            assert np.array_equal(weights.values(name).whole(), value.numpy())


def break_scale(tensors: dict[str, torch.Tensor]) -> None:
    to_fp8(tensors, 128)
    tensors["model.layers.2.self_attn.o_proj.weight_scale_inv"] = torch.ones(5, 5)


def lose_scale(tensors: dict[str, torch.Tensor]) -> None:
    to_fp8(tensors, 128)
    del tensors["model.layers.2.self_attn.o_proj.weight_scale_inv"]


def pack(tensors: dict[str, torch.Tensor]) -> None:
    name = "model.layers.2.self_attn.o_proj.weight"
    tensors[name] = torch.zeros(64, 32, dtype=torch.uint8)


def lose_expert(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.2.mlp.experts.3.up_proj.weight"]


def add_stranger(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.mlp.stranger.weight"] = torch.zeros(2, 2)


def lose_head(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        del tensors[name]
    tensors["model.layers.9.extra.weight"] = torch.zeros(1)


def lose_norm(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.2.input_layernorm.weight"]


def lose_query(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.2.self_attn.q_b_proj.weight"]


def widen(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.eh_proj.weight"] = torch.zeros(64, 256)


def make_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.self_attn.o_proj.weight"][3, 3] = torch.nan


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (break_scale, r"o_proj.weight_scale_inv.* \(5, 5\) does not fit"),
        (lose_scale, "o_proj.weight.* its scales .* are missing"),
        (pack, "o_proj.weight' holds U8: packed weights are not read"),
        (lose_expert, "expert 3 is missing"),
        (add_stranger, "stranger.weight' has no place in a head of deepseek2"),
        (lose_head, "has no MTP head: no tensors under mtp. and none of layer 2"),
        (lose_norm, "attn_norm.weight is missing"),
        (lose_query, "attn_q_b.weight is missing"),
        (widen, r"eh_proj.weight is \(64, 256\), expected \(64, 128\)"),
        (make_nan, "attn_output.weight of the head holds NaN"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said(
    deepseek: TinyHead, tmp_path: Path, edit: Edit, complaint: str
) -> None:
    made = edited(deepseek, tmp_path / "a", edit)
    with pytest.raises(ModelError, match=complaint):
        attach_to(deepseek.trunk, made, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


# Conventions of the target -----------------------------------------------------------------------


def blocks_with(head: TinyHead, manners: TargetStyle) -> dict[str, Any]:
    family = FAMILIES[head.kind.architecture]
    with open_checkpoint(head.checkpoint) as checkpoint:
        weights = CheckpointWeights(checkpoint)
        (names,) = family.layout(weights, weights.number("num_hidden_layers"))
        block = read_block(weights, family, names, manners)
        return {t.stem: np.concatenate([p.reshape(-1) for p in t.pieces()]) for t in block}


def test_manners_follow_the_target() -> None:
    old = ["blk.0.attn_kv_b.weight", "blk.0.attn_q.weight"]
    assert not TargetStyle.of(old).splits_kv_b
    assert TargetStyle.of([*old, "blk.0.attn_k_b.weight"]).splits_kv_b
    assert TargetStyle.of(["blk.1.ffn_gate_up_exps.weight"]).fuses_gate_up
    assert TargetStyle.of(["blk.0.attn_qkv.weight"]).fuses_qkv
    hybrid = ["blk.0.attn_qkv.weight", "blk.3.attn_q.weight"]
    assert not TargetStyle.of(hybrid).fuses_qkv


def test_old_files_keep_the_key_value_matrix_in_one(deepseek: TinyHead) -> None:
    old = blocks_with(deepseek, TargetStyle(splits_kv_b=False))
    new = blocks_with(deepseek, TargetStyle())
    whole = old["attn_kv_b.weight"].reshape(4, 32, 32)
    assert np.array_equal(new["attn_v_b.weight"].reshape(4, 16, 32), whole[:, 16:])
    assert np.array_equal(new["attn_k_b.weight"].reshape(4, 32, 16).swapaxes(1, 2), whole[:, :16])


def test_fused_experts_have_the_gate_first(deepseek: TinyHead) -> None:
    fused = blocks_with(deepseek, TargetStyle(fuses_gate_up=True))["ffn_gate_up_exps.weight"]
    split = blocks_with(deepseek, TargetStyle())
    parts = [split[f"ffn_{part}_exps.weight"].reshape(8, 32, 64) for part in ("gate", "up")]
    assert np.array_equal(fused.reshape(8, 64, 64), np.concatenate(parts, 1))


# MiMo's fused matrix -----------------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 4, 8])
def test_ranks_of_a_parallel_run_are_put_in_order(tmp_path: Path, n_ranks: int) -> None:
    """[q k v] of each rank in turn, with blocks of scales that begin anew in each."""
    n_q, n_k, n_v, width, block = 8 * 24, 8 * 24, 8 * 16, 48, 48
    q, k, v = (torch.randn(n, width) for n in (n_q, n_k, n_v))
    want, stored, scales = [q, k, v], [], []
    for rank in range(n_ranks):
        own = torch.cat([part.chunk(n_ranks)[rank] for part in want])
        numbers, factors = in_blocks(own, block)
        stored.append(numbers)
        scales.append(factors)
        pieces = own.split([n // n_ranks for n in (n_q, n_k, n_v)])
        for part, piece in zip(want, pieces, strict=True):  # what the stored numbers stand for
            part.chunk(n_ranks)[rank].copy_(piece)
    name = "model.mtp.layers.0.self_attn.qkv_proj.weight"
    tensors = {name: torch.cat(stored), f"{name}_scale_inv": torch.cat(scales)}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {
        "model_type": "mimo_v2", "num_hidden_layers": 1, "num_attention_heads": 8, "head_dim": 24,
        "v_head_dim": 16, "num_key_value_heads": 4, "swa_num_key_value_heads": 8,
        "quantization_config": {"weight_block_size": [block, block]},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_checkpoint(tmp_path) as checkpoint:
        weights = CheckpointWeights(checkpoint)
        (names,) = FAMILIES["mimo2"].layout(weights, 1)
        (tensor,) = read_block(weights, FAMILIES["mimo2"], names, TargetStyle())
        got = np.concatenate([piece.reshape(-1) for piece in tensor.pieces()])
    assert tensor.stem == "attn_qkv.weight"
    assert np.allclose(got.reshape(-1, width), torch.cat(want).numpy(), rtol=0, atol=1e-7)


# Copies ------------------------------------------------------------------------------------------


def test_a_copy_that_differs_in_one_bit_is_none(deepseek: TinyHead, tmp_path: Path) -> None:
    name = "model.layers.2.embed_tokens.weight"

    def touch(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][77, 3] = torch.nextafter(tensors[name][77, 3], torch.tensor(9.0))

    made = edited(deepseek, tmp_path / "a", touch)
    attach_to(deepseek.trunk, made, tmp_path / "out.gguf")
    kept = [stem for stem in contents(tmp_path / "out.gguf") if "nextn.embed" in stem]
    assert kept == ["blk.2.nextn.embed_tokens.weight"]
