"""The checkpoints that can be converted: one row per family, and what no key in GGUF says."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from .config import Config


@dataclass(frozen=True, slots=True)
class Family:
    architecture: str  # GGUF's word
    rope_theta: float = 10000.0  # where the configuration says nothing, as are the next ones
    rms_eps: float = 1e-6
    head_dim: int = 0  # 0: width divided by heads
    is_hybrid: bool = False
    is_tiled: bool = False  # value heads of the delta rule
    qkv_bias: bool = False


LLAMA: Final = Family("llama")
QWEN35: Final = Family("qwen35", head_dim=256, is_hybrid=True, is_tiled=True)
QWEN35MOE: Final = Family("qwen35moe", head_dim=256, is_hybrid=True, is_tiled=True)

FAMILIES: Final = MappingProxyType(
    {
        "llama": LLAMA,
        "mistral": LLAMA,
        "mixtral": Family("llama", rope_theta=1e6, rms_eps=1e-5),
        "qwen2": Family("qwen2", qkv_bias=True),
        "qwen3": Family("qwen3", head_dim=128),
        "qwen3_moe": Family("qwen3moe"),
        "qwen3_next": Family("qwen3next", head_dim=256, is_hybrid=True),
        "qwen3_5": QWEN35,
        "qwen3_5_text": QWEN35,
        "qwen3_5_moe": QWEN35MOE,
        "qwen3_5_moe_text": QWEN35MOE,
    }
)


def find_family(config: Config) -> Family:
    """By the language model's `model_type`; it decides how `transformers` computes as well."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        name = config.model_type or config.architecture
        raise ModelError(
            f"{config.label}: model type {printable(name)} cannot be converted (known: "
            f"{', '.join(FAMILIES)})"
        )
    activation = config.get("hidden_act", "hidden_activation")
    if activation not in (None, "silu", "swish"):
        raise config.error(f"hidden_act is {printable(activation)}; GGUF's graph has silu alone")
    return family
