"""`spec convert lora`: what an adapter adds to a converted model is what converting the merged
checkpoint adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support.checkpoints import build_checkpoint
from support.converting import check_line, convert
from support.hub_checkpoints import build_hub_checkpoint
from support.peft_folders import matrices, merged_checkpoint, write_peft
from support.tiny_models import FAMILIES as FAMILIES_OF_TOYS

from nextn.cli.app import run
from nextn.convert.checkpoint import open_checkpoint, open_place
from nextn.convert.hf.adapters import PlannedAdapter, open_peft, plan_adapter
from nextn.core.errors import NextnError
from nextn.core.gguf.reader import open_gguf

# Permuted rows, fused and reordered ones, columns in another order, scaled matrices, several kinds
# of layers.
FAMILIES = (
    "llama", "qwen3", "qwen35", "qwen3next", "gemma3", "glm4", "phi", "granitehybrid", "mamba2",
    "lfm2", "falcon-h1", "deepseek-v3", "kimi-linear", "bailingmoe2", "cohere2", "mimo2",
    "deepseek-v2", "glm4-lite", "lfm2moe", "ernie4_5-moe",
)  # fmt: skip


def checkpoint(family: str, folder: Path) -> Path:
    if family in FAMILIES_OF_TOYS:
        return build_checkpoint(family, folder / family).folder
    return build_hub_checkpoint(family, folder).folder


def planned(adapter: Path, base: Path) -> PlannedAdapter:
    opened = open_peft(open_place(adapter))
    with open_checkpoint(base) as read:
        try:
            return plan_adapter(opened, read)
        finally:
            opened.close()


def weights(path: Path) -> dict[str, np.ndarray]:
    with open_gguf(path) as file:
        return {name: tensor.floats().copy() for name, tensor in file.tensors.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_adds_is_what_merging_adds(family: str, tmp_path: Path) -> None:
    base = checkpoint(family, tmp_path)
    adapter = write_peft(tmp_path / "adapter", base)
    plan = planned(adapter, base)
    plain = weights(convert(base, tmp_path / "plain.gguf"))
    merged = weights(
        convert(
            merged_checkpoint(tmp_path / "merged", base, adapter, 2.0), tmp_path / "merged.gguf"
        )
    )
    alpha = plan.metadata["adapter.lora.alpha"].value
    assert {name for name in plain if not np.array_equal(plain[name], merged[name])} == set(
        plan.factors
    )
    for name, (a, b) in plan.factors.items():
        added = alpha / a.shape[-2] * (b.astype(np.float64) @ a)
        assert np.abs(plain[name] + added - merged[name]).max() < 1e-4, name


@pytest.mark.parametrize(
    "spelling", ["{}.lora_{}.weight", "base_model.model.{}.lora_{}.default.weight"]
)
def test_spellings(spelling: str, tmp_path: Path) -> None:
    base = checkpoint("qwen3", tmp_path)
    usual = planned(write_peft(tmp_path / "usual", base), base)
    other = planned(write_peft(tmp_path / "other", base, spelling=spelling), base)
    assert usual.factors.keys() == other.factors.keys()
    for name, pair in usual.factors.items():
        assert all(map(np.array_equal, pair, other.factors[name]))


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": 4.5}, 1.5),
        ({"use_rslora": True}, 6 / 3**0.5),
        ({"alpha_pattern": {"q_proj": 12}}, 2.0),
        ({"r": 9, "rank_pattern": {r".*": 3}}, 2.0),
        ({"alpha_pattern": {r"^model\.layers\.0\..*q_proj$": 12, "^q_proj": 1}}, 2.0),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 12, "proj": 1}}, 2.0),
    ],
)
def test_scales(config: dict[str, Any], scale: float, tmp_path: Path) -> None:
    base = checkpoint("qwen3", tmp_path)
    plan = planned(write_peft(tmp_path / "adapter", base, config=config), base)
    alpha, stored = (
        plan.metadata["adapter.lora.alpha"].value,
        load_file(tmp_path / "adapter/adapter_model.safetensors"),
    )
    for stem, module in (("attn_k", "self_attn.k_proj"), ("attn_q", "self_attn.q_proj")):
        a, b = plan.factors[f"blk.0.{stem}.weight"]
        name = f"base_model.model.model.layers.0.{module}.lora_"
        wanted = stored[f"{name}B.weight"].numpy() @ stored[f"{name}A.weight"].numpy()
        own = 4.0 if stem == "attn_q" and "alpha_pattern" in config else scale
        assert np.allclose(alpha / len(a) * (b @ a), own * wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"peft_type": "IA3"}, "peft_type"), ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"), ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"), ({"r": 5}, "rank"), ({"r": None}, "r "),
        ({"alpha_pattern": {"(.*.*.*)*x": 1}}, "has more than names"),
        ({"lora_alpha": -1}, "lora_alpha"), ({"lora_alpha": True}, "lora_alpha"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_said(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    base = checkpoint("qwen3", tmp_path)
    with pytest.raises(NextnError, match=why) as caught:
        planned(write_peft(tmp_path / "adapter", base, config=config), base)
    check_line(caught.value)


def test_tensors_that_have_no_place(tmp_path: Path) -> None:
    base = checkpoint("qwen3", tmp_path)
    adapter = write_peft(tmp_path / "adapter", base)
    path = adapter / "adapter_model.safetensors"
    good = load_file(path)
    q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    changes: list[tuple[dict[str, Any], str]] = [
        ({q.replace("layers.0", "layers.7"): good[q].clone()}, "one of lora_A and lora_B"),
        ({q.replace("lora_", "lora_magnitude_"): good[q].clone()}, "is no factor"),
        ({q: good[q][:, :5].contiguous()}, "another model"),
        ({q: good[q][0].contiguous()}, "do not go together"),
        ({q: good[q] * float("nan")}, "not finite"),
    ]
    for change, why in changes:
        save_file(good | change, path)
        with pytest.raises(NextnError, match=why) as caught:
            planned(adapter, base)
        check_line(caught.value)
    embedding = {
        f"base_model.model.model.embed_tokens.lora_{x}.weight": good[q].clone() for x in "A"
    } | {"base_model.model.model.embed_tokens.lora_B.weight": good[q].T.contiguous()}
    save_file(good | embedding, path)
    with pytest.raises(NextnError, match="embed"):
        planned(adapter, base)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = checkpoint("llama", tmp_path)
    adapter = write_peft(tmp_path / "adapter", base)
    out, model = tmp_path / "adapter.gguf", convert(base, tmp_path / "model.gguf")
    words = ["convert", "lora", str(adapter), "-o", str(out), "--json"]
    assert run(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["matrices"] == len(matrices(base))
    assert str(base) in said.err
    assert run(words) == 1
    assert "exists" in capsys.readouterr().err
    merged = merged_checkpoint(tmp_path / "merged", base, adapter, 2.0)
    texts = []
    for flags in (["-m", str(model)], ["-m", str(model), "--lora", str(out)],
                  ["-m", str(convert(merged, tmp_path / "merged.gguf"))]):  # fmt: skip
        assert run(["generate", *flags, "-n", "12", "--temp", "0", "--json", "-q", "x"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["tokens"])
    assert texts[0] != texts[1] == texts[2]
    for kind in ("f16", "bf16"):
        assert run([*words, "--force", "--type", kind]) == 0
    assert run([*words, "--force", "--type", "q4_0"]) == 2
    assert run(["convert", "lora", str(base), "-o", str(out)]) == 1
    assert "adapter_config.json" in capsys.readouterr().err
