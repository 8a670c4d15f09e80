"""Heads that no class of `transformers` can be made to compute: every name that the hub's
checkpoints have ends up under the name, and in the shape, that llama.cpp asks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.attaching import attach_to, contents, metadata
from support.tiny_models import write
from support.vocab import N_VOCAB, tokenizer_metadata

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.heads.family_table import find_mtp_family
from nextn.convert.heads.from_checkpoint import read_checkpoint_head
from nextn.convert.verify import examine, open_anything
from nextn.core.errors import ModelError
from nextn.core.gguf.reader import open_gguf

E, H, D, F, N, HC = 64, 4, 16, 32, 4, 2
MIX = (2 + HC) * HC
Shape = tuple[int, ...]
# Of the hub, its shape, and the GGUF name with its shape; None: as in the checkpoint.
Row = tuple[str, Shape, str, Shape | None]


def norms(names: Mapping[str, str], size: int = E) -> list[Row]:
    return [(f"{old}.weight", (size,), f"{new}.weight", None) for old, new in names.items()]


def experts(prefix: str, gate: str, up: str, down: str) -> list[Row]:
    rows: list[Row] = []
    for i in range(N):
        for name, kind, shape in (
            (gate, "gate", (F, E)), (up, "up", (F, E)), (down, "down", (E, F)),
        ):  # fmt: skip
            rows.append(
                (f"{prefix}.{i}.{name}.weight", shape, f"ffn_{kind}_exps.weight", (N, *shape))
            )
    return rows


def shared(prefix: str, gate: str, up: str, down: str) -> list[Row]:
    return [
        (f"{prefix}.{gate}.weight", (F, E), "ffn_gate_shexp.weight", None),
        (f"{prefix}.{up}.weight", (F, E), "ffn_up_shexp.weight", None),
        (f"{prefix}.{down}.weight", (E, F), "ffn_down_shexp.weight", None),
    ]


BESIDE: list[Row] = [
    ("eh_proj.weight", (E, 2 * E), "nextn.eh_proj.weight", None),
    *norms({"enorm": "nextn.enorm", "hnorm": "nextn.hnorm"}),
]
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")

DEEPSEEK4: list[Row] = [
    ("e_proj.weight", (E, E), "nextn.eh_proj.weight", (E, 2 * E)),
    ("h_proj.weight", (E, E), "nextn.eh_proj.weight", (E, 2 * E)),
    *norms({"enorm": "nextn.enorm", "hnorm": "nextn.hnorm", "norm": "nextn.shared_head_norm",
            "attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}),
    ("attn.attn_sink", (H,), "attn_sinks.weight", None),
    ("attn.wq_a.weight", (32, E), "attn_q_a.weight", None),
    ("attn.q_norm.weight", (32,), "attn_q_a_norm.weight", None),
    ("attn.wq_b.weight", (H * D, 32), "attn_q_b.weight", None),
    ("attn.wkv.weight", (D, E), "attn_kv.weight", None),
    ("attn.kv_norm.weight", (D,), "attn_kv_a_norm.weight", None),
    ("attn.wo_a.weight", (16, H * D // 2), "attn_output_a.weight", None),
    ("attn.wo_b.weight", (E, 16), "attn_output_b.weight", None),
    ("ffn.gate.weight", (N, E), "ffn_gate_inp.weight", None),
    ("ffn.gate.bias", (N,), "exp_probs_b.bias", None),
    *experts("ffn.experts", "w1", "w3", "w2"),
    *shared("ffn.shared_experts", "w1", "w3", "w2"),
    *[row for part in ("attn", "ffn") for row in (
        (f"hc_{part}_fn", (MIX, HC * E), f"hc_{part}_fn.weight", None),
        (f"hc_{part}_base", (MIX,), f"hc_{part}_base.weight", None),
        (f"hc_{part}_scale", (3,), f"hc_{part}_scale.weight", None))],
]  # fmt: skip
GLM5: list[Row] = [
    *BESIDE,
    *norms({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
            "shared_head.norm": "nextn.shared_head_norm"}),
    ("self_attn.q_a_proj.weight", (32, E), "attn_q_a.weight", None),
    ("self_attn.q_a_layernorm.weight", (32,), "attn_q_a_norm.weight", None),
    ("self_attn.q_b_proj.weight", (H * D, 32), "attn_q_b.weight", None),
    ("self_attn.kv_a_proj_with_mqa.weight", (32, E), "attn_kv_a_mqa.weight", None),
    ("self_attn.kv_a_layernorm.weight", (32,), "attn_kv_a_norm.weight", None),
    ("self_attn.kv_b_proj.weight", (H * 2 * D, 32), "attn_k_b.weight", (H, 32, D)),
    ("self_attn.o_proj.weight", (E, H * D), "attn_output.weight", None),
    ("self_attn.indexer.wq_b.weight", (32, 32), "indexer.attn_q_b.weight", None),
    ("self_attn.indexer.wk.weight", (16, E), "indexer.attn_k.weight", None),
    ("self_attn.indexer.k_norm.weight", (16,), "indexer.k_norm.weight", None),
    ("self_attn.indexer.k_norm.bias", (16,), "indexer.k_norm.bias", None),
    ("self_attn.indexer.weights_proj.weight", (2, E), "indexer.proj.weight", None),
    ("self_attn.indexer.index_kpool_compress_ape", (4, 16), "indexer_compressor_ape.weight", None),
    ("self_attn.indexer.index_kpool_compress_gate", (16, E), "indexer_compressor_gate.weight",
     None),
    ("mlp.gate.weight", (N, E), "ffn_gate_inp.weight", None),
    ("mlp.gate.e_score_correction_bias", (N,), "exp_probs_b.bias", None),
    *experts("mlp.experts", *PROJECTIONS), *shared("mlp.shared_experts", *PROJECTIONS),
]  # fmt: skip
BAILING2: list[Row] = [
    *BESIDE,
    *norms({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
            "final_layernorm": "layer_output_norm"}),
    *norms({"attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm"},
           D),
    ("attention.query_key_value.weight", (2 * H * D, E), "attn_qkv.weight", None),
    ("attention.dense.weight", (E, H * D), "attn_output.weight", None),
    ("mlp.gate.weight", (N, E), "ffn_gate_inp.weight", None),
    ("mlp.gate.expert_bias", (N,), "exp_probs_b.bias", None),
    *experts("mlp.experts", *PROJECTIONS), *shared("mlp.shared_experts", *PROJECTIONS),
]  # fmt: skip
SIZES = {
    "hidden_size": E, "num_attention_heads": H, "qk_nope_head_dim": D, "v_head_dim": D,
    "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "swiglu_limit": 7.0,
}  # fmt: skip
# architecture: (model_type, prefix on the hub, rows, what only the layers of the model have)
HEADS: dict[str, tuple[str, str, list[Row], dict[str, Shape]]] = {
    "deepseek4": ("deepseek_v4", "mtp.0.", DEEPSEEK4, {"attn_compressor_kv.weight": (D, E)}),
    "glm5-next": ("glm5_next", "model.language_model.layers.2.", GLM5,
                  {"hc_attn_fn.weight": (MIX, HC * E)}),
    "bailingmoe2": ("bailing_moe_v2", "model.layers.2.", BAILING2, {}),
}  # fmt: skip
# Norms that the model's own stands in for, and what heads carry and nobody runs.
OPTIONAL = ("norm.", "shared_head.norm.", "final_layernorm.", "self_attn.indexer.")
KEYS: dict[str, dict[str, Any]] = {
    "deepseek4": {"attention.compress_ratios": [4, 4], "swiglu_clamp_exp": [7.0, 7.0]},
    "glm5-next": {"attention.head_count_kv": [0, 1]},
    "bailingmoe2": {},
}


def expected(architecture: str) -> dict[str, Shape]:
    wanted = {new: want or shape for _, shape, new, want in HEADS[architecture][2]}
    return wanted | ({"attn_v_b.weight": (H, D, 32)} if "attn_k_b.weight" in wanted else {})


def tensors_of(architecture: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    _, prefix, rows, _ = HEADS[architecture]
    return {f"{prefix}{name}": torch.randn(shape) for name, shape, _, _ in rows}


def checkpoint(folder: Path, architecture: str, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = SIZES | {"model_type": HEADS[architecture][0]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def trunk(path: Path, architecture: str) -> Path:
    layer = {n: s for n, s in expected(architecture).items() if not n.startswith("nextn.")}
    layer |= HEADS[architecture][3]
    shapes: dict[str, Shape] = {"token_embd.weight": (N_VOCAB, E), "output_norm.weight": (E,)}
    shapes |= {f"blk.{n}.{stem}": shape for n in range(2) for stem, shape in layer.items()}
    keys = {"block_count": 2, "embedding_length": E, "context_length": 64} | KEYS[architecture]
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    write(path, architecture, tokenizer_metadata() | named, tensors)
    return path


@pytest.mark.parametrize("architecture", HEADS)
def test_every_name_of_the_hub_has_its_place(architecture: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hub", architecture, tensors_of(architecture))
    attach_to(trunk(tmp_path / "trunk.gguf", architecture), source, tmp_path / "out.gguf")
    found = contents(tmp_path / "out.gguf")
    blocks = {n.split(".", 2)[2]: s for n, (_, s, _) in found.items() if n.startswith("blk.2.")}
    assert blocks == expected(architecture)
    with open_gguf(tmp_path / "out.gguf") as file:
        for name, _, new, want in HEADS[architecture][2]:
            if want is None:
                original = tensors_of(architecture)[HEADS[architecture][1] + name].numpy()
                assert np.array_equal(file.tensors[f"blk.2.{new}"].floats(), original)


@pytest.mark.parametrize("architecture", HEADS)
def test_no_name_is_passed_over(architecture: str, tmp_path: Path) -> None:
    """Without any one of them there is a complaint, and with one more as well."""
    target = trunk(tmp_path / "trunk.gguf", architecture)
    prefix = HEADS[architecture][1]
    for i, name in enumerate(tensors := tensors_of(architecture)):
        if name.removeprefix(prefix).startswith(OPTIONAL):
            continue
        rest = {other: tensors[other] for other in tensors if other != name}
        source = checkpoint(tmp_path / f"{i}", architecture, rest)
        with pytest.raises(ModelError, match=r"missing|eh_proj"):
            attach_to(target, source, tmp_path / "out.gguf")
    more = tensors | {f"{prefix}stranger.weight": torch.zeros(2, 2)}
    source = checkpoint(tmp_path / "more", architecture, more)
    with pytest.raises(ModelError, match=r"stranger.* has no place in a head"):
        attach_to(target, source, tmp_path / "out.gguf")


@pytest.mark.parametrize("architecture", HEADS)
def test_inspect_finds_the_head(architecture: str, tmp_path: Path) -> None:
    """In the checkpoint, and in the file that got it."""
    source = checkpoint(tmp_path / "hub", architecture, tensors_of(architecture))
    report = examine(open_anything(str(source)))
    assert report.layers is not None
    assert report.layers.heads == 1
    assert report.drafters[0].works, report.findings
    attach_to(trunk(tmp_path / "trunk.gguf", architecture), source, tmp_path / "out.gguf")
    found = contents(tmp_path / "out.gguf")
    stems = {name.split(".", 2)[2].rpartition(".")[0] for name in found if "blk.2." in name}
    assert find_mtp_family(architecture).missing(stems) == []


def test_arrays_of_layers_go_on(tmp_path: Path) -> None:
    for architecture, name, want in (
        ("deepseek4", "attention.compress_ratios", [4, 4, 0]),
        ("deepseek4", "swiglu_clamp_exp", [7.0, 7.0, 7.0]),
        ("glm5-next", "attention.head_count_kv", [0, 1, 1]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        source = checkpoint(folder / "hub", architecture, tensors_of(architecture))
        attach_to(trunk(folder / "trunk.gguf", architecture), source, folder / "out.gguf")
        keys = {key: value for key, _, _, value in metadata(folder / "out.gguf")}
        assert keys[f"{architecture}.{name}"] == want


# DeepSeek V4 -------------------------------------------------------------------------------------


def attached(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    source = checkpoint(folder / "hub", "deepseek4", tensors)
    attach_to(trunk(folder / "trunk.gguf", "deepseek4"), source, folder / "out.gguf")
    return folder / "out.gguf"


def test_the_embedding_is_the_first_half_of_the_projection(tmp_path: Path) -> None:
    tensors = tensors_of("deepseek4")
    with open_gguf(attached(tmp_path, tensors)) as file:
        both = file.tensors["blk.2.nextn.eh_proj.weight"].floats()
    assert np.array_equal(both[:, :E], tensors["mtp.0.e_proj.weight"].numpy())
    assert np.array_equal(both[:, E:], tensors["mtp.0.h_proj.weight"].numpy())


def test_what_has_no_name_in_gguf_is_left_out_and_said(tmp_path: Path) -> None:
    tensors = tensors_of("deepseek4") | {"mtp.0.hc_head_fn": torch.randn(HC, HC * E)}
    source = checkpoint(tmp_path / "hub", "deepseek4", tensors)
    with open_checkpoint(source) as opened:
        head = read_checkpoint_head(opened, "deepseek4", ["blk.0.attn_norm.weight"])
    assert not [stem for stem in head.shapes[0] if "hc_head" in stem]
    assert any("hc_head_fn of the head has no name in GGUF" in line for line in head.remarks)


def test_fp4_experts_and_fp8_with_powers_of_two(tmp_path: Path) -> None:
    """As the hub has them: two numbers in a byte, exponents for 32 of them, or for a block."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    tensors, want = tensors_of("deepseek4"), {}
    name, plain = "mtp.0.ffn.experts.1.w1", "mtp.0.attn.wq_a"
    codes = torch.randint(0, 16, (F, E), dtype=torch.uint8)
    powers = torch.randint(120, 131, (F, E // 32), dtype=torch.uint8)
    packed = (codes[:, 0::2] | (codes[:, 1::2] << 4)).view(torch.int8)
    tensors |= {f"{name}.weight": packed, f"{name}.scale": powers.view(torch.float8_e8m0fnu)}
    want[name] = numbers[codes.long()] * (powers.double() - 127).exp2().repeat_interleave(32, 1)
    eights = torch.randn(32, E).to(torch.float8_e4m3fn)
    power = torch.full((1, 1), 125, dtype=torch.uint8)
    tensors |= {f"{plain}.weight": eights, f"{plain}.scale": power.view(torch.float8_e8m0fnu)}
    want[plain] = eights.double() / 4
    with open_gguf(attached(tmp_path, tensors)) as file:
        stack = file.tensors["blk.2.ffn_gate_exps.weight"].floats()
        assert np.array_equal(stack[1], want[name].numpy())
        assert np.array_equal(file.tensors["blk.2.attn_q_a.weight"].floats(), want[plain].numpy())


def test_packed_weights_with_other_scales_are_refused(tmp_path: Path) -> None:
    tensors = tensors_of("deepseek4")
    name = "mtp.0.ffn.experts.1.w1"
    tensors |= {f"{name}.weight": torch.zeros(F, E // 2, dtype=torch.int8),
                f"{name}.scale": torch.zeros(F, 3)}  # fmt: skip
    with pytest.raises(ModelError, match=r"experts.1.w1.* holds I8: packed weights are not read"):
        attached(tmp_path, tensors)
