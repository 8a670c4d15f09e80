"""Keys and tensors of Ministral, Command R, Hunyuan, ERNIE, Ling and the text towers of Qwen-VL."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ....core.gguf.printable import printable
from ..checkpoint_family import Keys, TensorMap
from ..matrix_rows import StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import f32, router_keys, softmax_router_keys
from .layer_kinds import windowed_layers
from .rotated_rows import llama_keys

_COHERE_PERIOD: Final = 4  # readers' own: three layers with a window, one without
_HUNYUAN_CONTEXT: Final = 1 << 18  # that its scaling is for; config.json has the shorter one


def rope_value(config: ModelConfig, name: str) -> Any:
    """Of the rope's own parameters, or of the whole configuration."""
    found = config.get("rope_parameters", "rope_scaling")
    own = found.get(name) if isinstance(found, dict) else None
    return config.get(name) if own is None else own


def mistral3_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    growth, below = (rope_value(config, n) for n in ("llama_4_scaling_beta", "mscale_all_dim"))
    if below is not None and rope_value(config, "mscale") not in (None, below):
        raise config.error("rope_parameters.mscale is unlike mscale_all_dim; GGUF has one for both")
    multiplier = None if below is None else f32(config.number("mscale_all_dim", below))
    return llama_keys(config, sizes, rope) | {
        # Readers derive the magnitude from the multiplier.
        **({} if below is None else {"rope.scaling.attn_factor": None}),
        "rope.scaling.yarn_log_multiplier": multiplier,
        "attention.temperature_scale": f32(config.number("llama_4_scaling_beta", growth))
        if growth
        else None,
    }


def cohere2_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    usual = [(i + 1) % _COHERE_PERIOD != 0 for i in range(sizes.n_layers)]
    named = config.get("layer_types", "sliding_window_pattern")
    if named is not None and windowed_layers(config, sizes.n_layers) != usual:
        raise config.error("layer_types are not three with a window, then one without")
    share = config.number("rotary_pct", config.get("rotary_pct"), 1.0)
    return {
        "attention.layer_norm_rms_epsilon": None,
        "attention.layer_norm_epsilon": f32(
            config.number("layer_norm_eps", config.get("layer_norm_eps"), 1e-5)
        ),
        "logit_scale": f32(config.number("logit_scale", config.get("logit_scale"), 0.0625)),
        "attention.sliding_window": config.size("sliding_window"),
        "vocab_size": sizes.n_vocab,
        "rope.dimension_count": int(share * sizes.head_dim),
        "rope.scaling.type": "none",
    }


def hunyuan_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    """A base that stands for the scaling by `alpha`."""
    alpha = rope_value(config, "alpha")
    if str(rope_value(config, "rope_type") or rope_value(config, "type")) != "dynamic" or not alpha:
        return {}
    grown = config.number("alpha", alpha) ** (sizes.head_dim / (sizes.head_dim - 2))
    return {
        "rope.freq_base": f32(rope.theta * grown),
        "rope.scaling.type": "none",
        "rope.scaling.factor": f32(1.0),
        "rope.scaling.original_context_length": _HUNYUAN_CONTEXT,
        "context_length": _HUNYUAN_CONTEXT,
    }


def hunyuan_moe_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    n_shared = config.with_one_for_all("num_shared_expert").count("num_shared_expert")
    return hunyuan_keys(config, sizes, rope) | {
        "expert_shared_feed_forward_length": sizes.n_ff,
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_count": n_shared or None,
    }


def ernie_moe_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    n_shared = config.count("moe_num_shared_experts")
    return {
        "interleave_moe_layer_step": config.size("moe_layer_interval", default=1),
        "leading_dense_block_count": config.count("moe_layer_start_index"),
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_count": n_shared,
        "expert_shared_feed_forward_length": sizes.n_ff_expert * n_shared or None,
    }


def put_fused_qkv(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    sizes = mapping.sizes
    heights = [n * sizes.head_dim for n in (sizes.n_heads, sizes.n_kv_heads, sizes.n_kv_heads)]
    mapping.check_rows(matrix, sum(heights))
    start = 0
    for name, height in zip("qkv", heights, strict=True):
        mapping.put(f"{block}.attn_{name}.weight", matrix, np.arange(start, start + height))
        start += height


def put_fused_gate(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    put_halves(mapping, matrix, f"{block}.ffn_gate.weight", f"{block}.ffn_up.weight")


def put_halves(mapping: TensorMap, matrix: StoredMatrix, first: str, second: str) -> None:
    half = matrix.n_rows // 2
    mapping.put(first, matrix, np.arange(half))
    mapping.put(second, matrix, np.arange(half, 2 * half))


def bailing_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    n_shared = config.count("num_shared_experts")
    own = config.count("moe_shared_expert_intermediate_size")
    return router_keys(config) | {
        "rope.dimension_count": rope.n_rot,
        "leading_dense_block_count": config.count("first_k_dense_replace"),
        "vocab_size": sizes.n_vocab,
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_feed_forward_length": own or sizes.n_ff_expert * n_shared,
        "expert_shared_count": n_shared,
    }


def tower_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    """Of Qwen3-VL: how many layers images are added to."""
    eyes = config.get("vision_config")
    layers = eyes.get("deepstack_visual_indexes") if isinstance(eyes, dict) else None
    if layers is not None and not isinstance(layers, list):
        raise config.error(f"deepstack_visual_indexes is {printable(layers)}, not a list")
    return softmax_router_keys(config, sizes, rope) | {"n_deepstack_layers": len(layers or [])}
