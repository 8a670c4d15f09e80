"""LoRA adapters: logits of a model with some are those of a model that has them in its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.adapter_files import merged, write_adapter
from support.running import random_tokens
from support.tiny_models import TinyModel

from nextn.core import load
from nextn.core.models.adapters import AdapterPath

Tiny = Callable[..., TinyModel]
# Permuted rows, fused gates, recurrent layers of each kind, latent attention, soft caps, experts.
FAMILIES = (
    "llama", "qwen2", "qwen3", "qwen35", "qwen3moe", "gemma3", "deepseek2",
    "granitehybrid-moe", "lfm2", "phi", "cohere2", "qwen2moe", "nemotron_h",
    "gpt-oss", "llama4", "nemotron_h_moe", "qwen35moe",
)  # fmt: skip
SEVERAL = 24


def logits(path: Path, device: str, lora: Sequence[AdapterPath] = ()) -> np.ndarray:
    with load(path, device, n_ctx=128, lora=lora, draft=[]) as runtime:
        n_vocab = runtime.model.hparams.n_vocab
        return runtime.logits(random_tokens(SEVERAL, n_vocab=n_vocab)).copy()


@pytest.mark.parametrize("device", ["torch", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_those_of_merged_weights(
    tiny: Tiny, tmp_path: Path, family: str, device: str
) -> None:
    path = tiny(family).path
    first = write_adapter(tmp_path / "first.gguf", path)
    second = write_adapter(tmp_path / "second.gguf", path, rank=3, seed=1)
    together = merged(path, {first: 1.0, second: -0.5}, tmp_path / "merged.gguf")
    plain, wanted = logits(path, device), logits(together, device)
    found = logits(path, device, [first, (second, -0.5)])
    assert np.abs(plain - wanted).max() > 0.1
    assert np.abs(found - wanted).max() <= (1e-4 if device == "torch" else 1e-2)
