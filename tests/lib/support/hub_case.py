"""What a test says of a checkpoint of the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class HubCase:
    """Without `head`: of `hf_class`. `hub` turns a saved config.json into the hub's."""

    architecture: str
    head: str = ""  # a name of `tiny_heads.KINDS`
    hf_class: str = ""
    hf_config: str = ""
    settings: Config = field(default_factory=dict)
    is_shifted: bool = False
    embedding: float = 1.0  # the deviation of its numbers
    stored: Callable[[Config], None] | None = None  # what `transformers` cannot save itself
    hub: Callable[[Config], None] | None = None
    tensors: Callable[[Tensors], None] | None = None  # to the hub's layout
    weights: Callable[[Tensors], Tensors] | None = None  # of the model, where that changes numbers


def fuse_qkv(tensors: Tensors) -> None:
    """As newer checkpoints of MiMo have it."""
    for name in [name for name in tensors if name.endswith("self_attn.q_proj.weight")]:
        parts = [name.replace("q_proj", f"{kind}_proj") for kind in "qkv"]
        fused = torch.cat([tensors.pop(part) for part in parts])
        tensors[name.replace("q_proj", "qkv_proj")] = fused
