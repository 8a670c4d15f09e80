"""Keys of the families with windows, latent attention and groups of experts: one line, or none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rewriting import rewritten
from support.running import load
from support.tiny_models import TinyModel

from nextn.core.errors import NextnError

Tiny = Callable[..., TinyModel]


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("mimo2", {"mimo2.attention.sliding_window": None}, "attention.sliding_window' is missing"),
        ("step35", {"step35.attention.sliding_window": 0}, "attention.sliding_window"),
        ("exaone-moe", {"exaone-moe.attention.sliding_window": None}, "sliding_window' is missing"),
        ("deepseek2", {"deepseek2.expert_group_count": 3}, "8 experts in 3 groups"),
        (
            "deepseek2",
            {"deepseek2.expert_group_count": 8, "deepseek2.expert_group_used_count": 1},
            "cannot give 2 experts",
        ),
        ("deepseek2", {"deepseek2.rope.dimension_count": 24}, "less than the width of a head, 24"),
        ("deepseek2", {"deepseek2.attention.kv_lora_rank": None}, "kv_lora_rank' is missing"),
        ("gemma4-inputs", {"gemma4.embedding_length_per_layer_input": 0}, "does not use tensors"),
        ("gemma4", {"gemma4.embedding_length_per_layer_input": 8}, "missing tensors"),
        ("gemma4", {"gemma4.attention.shared_kv_layers": 4}, "no layer of its kind comes before"),
    ],
)
def test_what_does_not_fit_is_one_line(
    family: str, changes: dict[str, Any], said: str, tiny: Tiny, tmp_path: Path
) -> None:
    path = rewritten(tiny(family).path, tmp_path / "m.gguf", changes)
    with pytest.raises(NextnError, match=re.escape(said)) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_gemma_3_without_a_window_sees_all(tiny: Tiny, tmp_path: Path) -> None:
    key = "gemma3.attention.sliding_window"
    model, _ = load(rewritten(tiny("gemma3").path, tmp_path / "m.gguf", {key: None}))
    assert not any(kv.window for kv in model.state_shape.kv)
