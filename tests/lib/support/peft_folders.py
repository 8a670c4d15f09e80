"""LoRA adapters as PEFT saves them, and checkpoints that have them in their weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

# What becomes a stack, is absorbed by attention, or is no matrix of a product.
NOT_ADAPTED = ("embed", "kv_b_proj", "conv", "router", "A_log")


def matrices(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of a checkpoint, those that PEFT would adapt; without `.weight`."""
    found = {
        name.removesuffix(".weight"): tuple(tensor.shape)
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
        if name.endswith(".weight") and tensor.ndim == 2
    }
    return {
        name: shape
        for name, shape in found.items()
        if not any(part in name for part in NOT_ADAPTED) and min(shape) > 1
    }


def write_peft(
    folder: Path,
    base: Path,
    *,
    rank: int = 3,
    names: Callable[[str], bool] = lambda name: True,
    config: Mapping[str, Any] | None = None,
    spelling: str = "base_model.model.{}.lora_{}.weight",
) -> Path:
    """`names`: which matrices it changes."""
    random = torch.Generator().manual_seed(7)
    tensors = {}
    for name, (n_out, n_in) in matrices(base).items():
        if names(name):
            a = torch.randn(rank, n_in, generator=random)
            tensors[spelling.format(name, "A")] = a
            tensors[spelling.format(name, "B")] = torch.randn(n_out, rank, generator=random)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
                "base_model_name_or_path": str(base)}  # fmt: skip
    text = json.dumps(settings | dict(config or {}))
    (folder / "adapter_config.json").write_text(text)
    return folder


def merged_checkpoint(folder: Path, base: Path, adapter: Path, scale: float) -> Path:
    """The base with scale * B A added to its weights."""
    shutil.copytree(base, folder)
    factors = load_file(adapter / "adapter_model.safetensors")
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            key = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            if f"{key}A.weight" in factors:
                a, b = (factors[f"{key}{x}.weight"].double() for x in "AB")
                tensors[name] = (tensors[name].double() + scale * (b @ a)).float().contiguous()
        save_file(tensors, path, {"format": "pt"})
    return folder
