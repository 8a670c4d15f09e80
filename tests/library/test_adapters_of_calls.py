"""LoRA adapters in the library: loaded with a model, and a scale of each in a call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.adapter_files import write_adapter
from support.tiny_models import TinyModel

import nextn
from nextn.core.errors import ConfigError


def test_each_call_has_its_scales(tiny: Callable[..., TinyModel], tmp_path: Path) -> None:
    path = tiny("qwen3").path
    first = write_adapter(tmp_path / "first.gguf", path)
    second = write_adapter(tmp_path / "second.gguf", path, seed=1)

    def text(model: nextn.LanguageModel, lora: list[float] | None = None) -> str:
        return model.generate("the cat", max_tokens=12, temperature=0, lora=lora).text

    with nextn.load(path, n_ctx=64) as plain:
        wanted = text(plain)
        with pytest.raises(ConfigError, match="lora"):
            text(plain, [1.0])
    with nextn.load(path, n_ctx=64, lora=[first, (second, 0.0)], parallel=2) as model:
        assert text(model, [0, 0]) == wanted
        adapted = text(model)
        assert adapted == text(model, [1, 0]) != wanted
        assert text(model, [0.5, -1]) not in (wanted, adapted)
        with pytest.raises(ConfigError, match="1 scales for 2"):
            text(model, [1.0])
    with nextn.load(path, n_ctx=64, lora=first) as single:
        assert text(single) == adapted
