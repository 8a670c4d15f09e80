"""Keys of routers and experts."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ....core.gguf.printable import printable
from ....core.gguf.types import Typed, ValueType
from ..checkpoint_family import Keys
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting

# expert_gating_func
SOFTMAX, SIGMOID = 1, 2
_GATING: Final = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "sqrtsoftplus": 4}
_SCORING: Final = ("scoring_func", "score_function", "moe_router_activation")


def softmax_router_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    """Of Qwen's mixtures, whose readers know the rest."""
    if not sizes.n_experts:
        return {}
    return {
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_feed_forward_length": sizes.n_ff_shared or None,
        "expert_weights_norm": False if config.get("norm_topk_prob") is False else None,
    }


def router_keys(config: ModelConfig, default: int | None = SIGMOID) -> Keys:
    """How experts are chosen. `default`: where config.json does not name the function."""
    named = config.get(*_SCORING)
    if named is not None and named not in _GATING:
        raise config.error(f"{_SCORING[0]} is {printable(named)}; {', '.join(_GATING)} are known")
    scale = config.get("routed_scaling_factor", "moe_router_scaling_factor")
    norm = config.get("norm_topk_prob", "norm_expert_weight")
    return {
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "expert_gating_func": default if named is None else _GATING[named],
        "expert_weights_scale": None if scale is None else f32(config.number("scale", scale)),
        "expert_weights_norm": norm if isinstance(norm, bool) else None,
    }


def f32(value: float) -> Typed:
    return Typed(ValueType.F32, value)


def per_layer(values: list[Any], element: ValueType) -> Typed:
    dtype = np.float32 if element is ValueType.F32 else np.int32
    return Typed(ValueType.ARRAY, np.array(values, dtype), element)


def leading_dense(config: ModelConfig, default: int | None = None) -> int | None:
    """Layers before the first with experts."""
    found = config.get("first_k_dense_replace", "first_last_k_dense_replace")
    if found is None:
        kinds = config.get("mlp_layer_types")  # as `transformers` saves it
        if not isinstance(kinds, list):
            return default
        return next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if type(found) is not int or found < 0:
        raise config.error(f"first_k_dense_replace is {printable(found)}, not a number of layers")
    return found
