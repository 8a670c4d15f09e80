"""gpt-oss: where YaRN's ramp ends, and files that lack a part."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.running import load, random_tokens, start
from support.tiny_models import FAMILIES, TinyModel, build_tiny

from nextn.core.errors import ModelError


def with_another_ramp(*, truncate: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its ramp ends in the middle between two pairs, and so it matters where it is said to end."""
    family = FAMILIES["gpt-oss"]
    rope = family.settings["rope_parameters"] | {"beta_slow": 1.5, "truncate": truncate}
    monkeypatch.setitem(family.settings, "rope_parameters", rope)

    def edit(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys["gpt-oss.rope.scaling.yarn_beta_slow"] = 1.5
        if truncate:
            keys["gpt-oss.rope.scaling.yarn_truncate"] = True

    return build_tiny("gpt-oss", folder, edit=edit)


@pytest.mark.parametrize("truncate", [False, True])
def test_the_ramp_of_yarn_ends_where_the_model_has_it(
    truncate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = random_tokens(40)
    folders = [tmp_path / str(i) for i in (False, True)]
    for folder in folders:
        folder.mkdir()
    made = [
        with_another_ramp(truncate=bool(i), folder=folder, monkeypatch=monkeypatch)
        for i, folder in enumerate(folders)
    ]
    with torch.no_grad():
        want = [each.hf(torch.tensor(tokens)[None]).logits[0].numpy() for each in made]
    assert np.abs(want[0] - want[1]).max() > 1e-2
    got = start(made[truncate].path).append(tokens)
    assert np.abs(got - want[truncate]).max() <= 1e-4


@pytest.mark.parametrize(
    "name",
    ["attn_k.bias", "ffn_gate_inp.bias", "ffn_up_exps.bias", "ffn_down_exps.bias"],
)
def test_a_missing_bias_is_one_line(name: str, tmp_path: Path) -> None:
    def edit(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        del tensors[f"blk.1.{name}"]

    made = build_tiny("gpt-oss", tmp_path, edit=edit)
    with pytest.raises(ModelError, match=f"missing tensors: blk.1.{re.escape(name)}$"):
        load(made.path)


def test_every_second_layer_looks_through_a_window(tiny: Callable[..., TinyModel]) -> None:
    model, _ = load(tiny("gpt-oss").path)
    assert [kv.window for kv in model.state_shape.kv] == [8, 0, 8, 0]
