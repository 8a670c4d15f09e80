"""Sizes of drafters, under the names that `config.json` files use for them."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class DrafterShape(Struct, frozen=True):
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096


# For the bundled model, whose embedding and head they use.
EAGLE3 = DrafterShape(
    hidden_size=256, intermediate_size=640, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64,
)  # fmt: skip
DFLASH = replace(EAGLE3, num_hidden_layers=2)
