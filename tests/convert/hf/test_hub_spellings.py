"""Spellings and faults of the hub's families: nested models, shared heads, what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.attaching import contents
from support.converting import check_line, convert, plan
from support.hub_checkpoints import HubCheckpoint, build_hub_checkpoint

from nextn.core.errors import ModelError
from nextn.core.gguf.reader import open_gguf

Tensors = dict[str, torch.Tensor]
Edit = Callable[[Tensors, dict[str, Any]], None]


def edited(made: HubCheckpoint, edit: Edit) -> Path:
    """All tensors in one file, and the configuration, changed."""
    tensors: Tensors = {}
    for path in sorted(made.folder.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (made.folder / "model.safetensors.index.json").unlink(missing_ok=True)
    config = json.loads((made.folder / "config.json").read_text())
    edit(tensors, config)
    save_file(tensors, made.folder / "model.safetensors")
    (made.folder / "config.json").write_text(json.dumps(config))
    return made.folder


def nest(tensors: Tensors, config: dict[str, Any]) -> None:
    """As models with eyes and ears have it."""
    inner = dict(config)
    config.clear()
    config |= {"model_type": "gemma4", "text_config": inner, "vision_config": {"hidden_size": 8}}
    for name in list(tensors):
        tensors["model.language_model." + name.removeprefix("model.")] = tensors.pop(name)
    for name in ("vision_tower.a", "audio_tower.b", "embed_vision.c", "embed_audio.d"):
        tensors[f"model.{name}.weight"] = torch.zeros(4)


def test_a_language_model_inside_of_another(tmp_path: Path) -> None:
    made = build_hub_checkpoint("gemma4-shared", tmp_path)
    alone = contents(convert(made.folder, tmp_path / "alone.gguf"))
    folder = edited(made, nest)
    assert contents(convert(folder, tmp_path / "nested.gguf")) == alone
    assert "4 tensors of vision or audio are left out" in "".join(plan(folder).notes)


def share(tensors: Tensors, config: dict[str, Any]) -> None:
    config |= {"mtp_share_layers": True, "num_nextn_predict_layers": 2}


def test_one_layer_for_several_heads(tmp_path: Path) -> None:
    folder = edited(build_hub_checkpoint("exaone-moe", tmp_path), share)
    ours = open_gguf(convert(folder, tmp_path / "out.gguf"))
    assert ours.metadata.int("nextn_predict_layers") == 2
    first, second = (
        {
            name.split(".", 2)[2]: tensor.data.tobytes()
            for name, tensor in ours.tensors.items()
            if name.startswith(f"blk.{n}.")
        }
        for n in (4, 5)
    )
    assert first == second
    assert "nextn.eh_proj.weight" in first


def without(*names: str) -> Edit:
    def edit(tensors: Tensors, config: dict[str, Any]) -> None:
        for name in names:
            del tensors[name]

    return edit


def setting(**values: Any) -> Edit:
    return lambda tensors, config: config.update(values)


FAULTS: list[tuple[str, Edit, str]] = [
    ("glm4moe", without("model.layers.2.enorm.weight"),
     r"makes blk.2.nextn.enorm.weight; the MTP head is incomplete, --no-mtp"),
    ("glm4moe", without("model.layers.1.self_attn.o_proj.weight"), "blk.1.attn_output.weight"),
    ("glm4moe", without("model.layers.1.mlp.experts.3.up_proj.weight"), "expert 3 is missing"),
    ("glm4moe", setting(scoring_func="argmax"), "scoring_func is 'argmax'"),
    ("deepseek-v3", setting(v_head_dim=12), r"kv_b_proj.*has 128 rows, expected 112"),
    ("deepseek-v3", setting(qk_rope_head_dim=None), "qk_rope_head_dim is missing"),
    ("mimo2", setting(swa_head_dim=32), "swa_head_dim is 32, unlike head_dim"),
    ("exaone-moe", setting(layer_types=["full_attention", "linear_attention", "x", "y"]),
     "layer_types has 'linear_attention', expected sliding_attention or full_attention"),
    ("gemma3", setting(attn_logit_softcapping=50.0), "which no Gemma 3 has"),
    ("gemma4", setting(global_head_dim=None), "global_head_dim is missing"),
    ("gemma4", setting(hidden_activation="silu"), "hidden_act is 'silu'; GGUF's graph has gelu"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "message"), FAULTS)
def test_faults(name: str, edit: Edit, message: str, tmp_path: Path) -> None:
    folder = edited(build_hub_checkpoint(name, tmp_path), edit)
    with pytest.raises(ModelError, match=message) as found:
        plan(folder)
    check_line(found.value)


def test_a_pattern_and_a_scale_that_readers_would_not_guess(tmp_path: Path) -> None:
    made = build_hub_checkpoint("gemma3", tmp_path)
    usual = plan(made.folder).metadata
    keys = ("gemma3.attention.sliding_window_pattern", "gemma3.attention.scale")
    assert not any(key in usual for key in keys)
    odd = setting(sliding_window_pattern=3, query_pre_attn_scalar=64)
    found = plan(edited(made, odd)).metadata
    assert found[keys[0]] == [True, True, False, True, True, False, True]
    assert found[keys[1]].value == 0.125
