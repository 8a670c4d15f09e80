"""Step 3.5: heads, bases and clamps of each layer's kind. Lists in config.json go on behind the
trunk, for MTP heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....core.gguf.printable import printable
from ....core.gguf.types import ValueType
from ...checkpoint.safetensors import Floats
from ..checkpoint_family import Keys
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import leading_dense, per_layer, router_keys
from .layer_kinds import windowed_heads, windowed_layers

_CLAMPS = {"swiglu_clamp_exp": "swiglu_limits", "swiglu_clamp_shexp": "swiglu_limits_shared"}


def step_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    n_layers, n_mtp = sizes.n_layers, sizes.n_mtp
    is_windowed = windowed_layers(config, n_layers)
    is_windowed += windowed_heads(config, n_layers, n_mtp, default=False)
    other = config.get("attention_other_setting")
    other = other if isinstance(other, dict) else {}
    n_heads = config.count("num_sliding_attention_heads") or other.get("num_attention_heads")
    heads = {False: sizes.n_heads, True: n_heads or sizes.n_heads}
    kv_heads = {
        False: sizes.n_kv_heads,
        True: other.get("num_attention_groups") or sizes.n_kv_heads,
    }
    router = router_keys(config)
    if router["expert_weights_norm"] is None:  # lost where `transformers` has saved it again
        router["expert_weights_norm"] = True
    return router | {
        "attention.head_count": per_layer([heads[w] for w in is_windowed], ValueType.I32),
        "attention.head_count_kv": per_layer([kv_heads[w] for w in is_windowed], ValueType.I32),
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": is_windowed,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_feed_forward_length": sizes.n_ff_shared,
        "leading_dense_block_count": _first_expert_layer(config),
        "moe_every_n_layers": config.size("moe_every_n_layer", default=1),
        **{key: _clamps(config, name, sizes.n_blocks) for key, name in _CLAMPS.items()},
    }


def _first_expert_layer(config: ModelConfig) -> int:
    """The hub names all layers with experts, in a text of numbers."""
    if (found := leading_dense(config)) is not None:
        return found
    listed = config.get("moe_layers_enum")
    numbers = listed.split(",") if isinstance(listed, str) else listed or []
    try:
        return min(map(int, numbers), default=0)
    except (TypeError, ValueError):
        raise config.error(f"moe_layers_enum is {printable(listed)}, not numbers") from None


def _clamps(config: ModelConfig, name: str, n_blocks: int) -> Any:
    limits = config.get(name)
    if limits is None:
        return None
    if not isinstance(limits, list) or any(type(x) not in (int, float, type(None)) for x in limits):
        raise config.error(f"{name} is {printable(limits)}, not a number or null for each layer")
    values = [float(limit or 0) for limit in limits[:n_blocks]]
    return per_layer(values + [0.0] * (n_blocks - len(values)), ValueType.F32)


def step_factors(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Floats | None:
    """Half of a head turns in layers without a window; readers want a factor for all of it."""
    if rope.factors is None:
        return None
    lacking = sizes.head_dim // 2 - len(rope.factors)
    return np.concatenate([rope.factors, np.ones(lacking, np.float32)])
