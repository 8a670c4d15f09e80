"""Files that are no LoRA adapter for a model: each is refused in one line that says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter_files import adaptable, write_adapter
from support.rewriting import rewritten
from support.tiny_models import TinyModel

from nextn.core import load
from nextn.core.backend.cpu.backend import CpuBackend
from nextn.core.errors import NextnError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

Tiny = Callable[..., TinyModel]


def refusal(model: Path, adapter: Path) -> str:
    with pytest.raises(NextnError) as caught:
        load(model, "cpu", n_ctx=64, lora=adapter).close()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"general.type": "model"}, "is no LoRA adapter"),
        ({"adapter.type": "ia3"}, "adapter.type is 'ia3'"),
        ({"general.architecture": "gemma3"}, "is an adapter for gemma3 models, and this one is"),
        ({"adapter.alora.invocation_tokens": "x"}, "aLoRA"),
    ],
)
def test_keys(tiny: Tiny, tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    path = tiny("qwen3").path
    good = write_adapter(tmp_path / "good.gguf", path)
    assert why in refusal(path, rewritten(good, tmp_path / "bad.gguf", keys))


@pytest.mark.parametrize("family", ["qwen3moe", "deepseek2", "llama"])
def test_tensors_that_are_not_added_to(tiny: Tiny, tmp_path: Path, family: str) -> None:
    """What attention has absorbed, and the embedding."""
    path = tiny(family).path
    with open_gguf(path) as file:
        names = [name for name in file.tensors if name.endswith(".weight")]
        names = [name for name in names if len(file.tensors[name].shape) > 1]
        refused = sorted(set(names) - set(adaptable(file)))
    assert "token_embd.weight" in refused
    for name in refused:
        if "ffn_gate_inp" in name:  # a router is a product as well
            continue
        adapter = write_adapter(tmp_path / "adapter.gguf", path, names=[name])
        text = refusal(path, adapter)
        assert name in text
        assert "merge" in text


def test_an_adapter_for_another_model(tiny: Tiny, tmp_path: Path) -> None:
    """Of the same architecture: one that is wider, and one with more layers."""
    path = tiny("qwen3").path
    adapter = write_adapter(tmp_path / "adapter.gguf", path)
    with open_gguf(adapter) as file:
        keys = {key: file.metadata.typed(key) for key in file.metadata}
        arrays = {name: tensor.floats() for name, tensor in file.tensors.items()}

    def written(changes: Mapping[str, np.ndarray | None]) -> Path:
        own = {k: v for k, v in {**arrays, **changes}.items() if v is not None}
        float32 = find_format("F32")
        tensors = [TensorData(k, v.shape, float32, v.tobytes()) for k, v in own.items()]
        (tmp_path / "other.gguf").unlink(missing_ok=True)
        write_gguf(tmp_path / "other.gguf", keys, tensors)
        return tmp_path / "other.gguf"

    first = next(name for name in arrays if name.endswith(".lora_a"))
    second = first.removesuffix("a") + "b"
    wide = np.pad(arrays[first], ((0, 0), (0, 32)))
    assert "made for another model" in refusal(path, written({first: wide}))
    assert "does not have" in refusal(
        path,
        written({"blk.9.attn_q.weight.lora_a": wide, "blk.9.attn_q.weight.lora_b": arrays[second]}),
    )
    assert "has no .lora_b" in refusal(path, written({second: None}))
    broken = arrays[second].copy()
    broken[0, 0] = np.nan
    assert "not finite" in refusal(path, written({second: broken}))
    none = {first: arrays[first][:0], second: arrays[second][:, :0]}
    assert "(0, 64)" in refusal(path, written(none))
    assert "changes nothing" in refusal(path, written(dict.fromkeys(arrays)))


def test_a_whole_model_is_no_adapter(tiny: Tiny) -> None:
    path = tiny("qwen3").path
    assert "goes to -m" in refusal(path, path)


def test_a_device_that_runs_none(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBackend, "runs_adapters", False)
    path = tiny("qwen3").path
    adapter = write_adapter(tmp_path / "adapter.gguf", path)
    assert "does not run LoRA adapters" in refusal(path, adapter)
