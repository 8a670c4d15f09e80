"""Gemma 3 and 4: keys, and Gemma 4's tensors beside its blocks' (per-layer inputs, routers)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ....core.gguf.printable import printable
from ....core.gguf.types import ValueType
from ...checkpoint.safetensors import Floats
from ..checkpoint_family import Keys, TensorMap
from ..matrix_rows import MatrixRows, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import f32, per_layer
from .layer_kinds import windowed_layers

NORMS: Final = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GEMMA4_STEMS: Final = NORMS | {
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
}
GEMMA4_WHOLE: Final = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
GEMMA4_OUTSIDE: Final = {
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
GEMMA3_DEFAULTS: Final = {
    "max_position_embeddings": 131072, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "vocab_size": 262208, "rope_local_base_freq": 10000.0,
}  # fmt: skip
_PERIOD: Final = 6  # readers' own, of Gemma 3: five layers with a window, one without
_LAYERS_OF_27B: Final = 62
_UNTURNED: Final = 1e30  # an angle divided by it is none


def gemma3_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    if config.get("attn_logit_softcapping") is not None:
        raise config.error("attn_logit_softcapping is set, which no Gemma 3 has")
    has_window = config.get("sliding_window_pattern") != 1
    return {
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "final_logit_softcapping": _soft_cap(config),
        "attention.sliding_window": config.size("sliding_window") if has_window else None,
        "attention.sliding_window_pattern": _odd_pattern(config, sizes) if has_window else None,
        "attention.scale": _odd_scale(config, sizes),
    }


def _odd_pattern(config: ModelConfig, sizes: ModelSizes) -> list[bool] | None:
    """None where it is what readers take without a key."""
    if config.get("layer_types", "sliding_window_pattern") is None:
        return None
    found = windowed_layers(config, sizes.n_layers)
    return None if found == [(i + 1) % _PERIOD != 0 for i in range(len(found))] else found


def _odd_scale(config: ModelConfig, sizes: ModelSizes) -> Any:
    """Readers go by the number of layers; the key is for what they would have wrong."""
    scalar = config.number("query_pre_attn_scalar", config.get("query_pre_attn_scalar"), 256.0)
    is_large = sizes.n_layers == _LAYERS_OF_27B
    taken = sizes.n_embd // sizes.n_heads if is_large else sizes.head_dim
    return None if scalar == taken else f32(scalar**-0.5)


def gemma4_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    is_windowed = windowed_layers(config, sizes.n_layers)
    n_shared = config.count("num_kv_shared_layers")
    wide = global_head_dim(config)
    has_experts = config.get("enable_moe_block") is True
    n_ff = [sizes.n_ff * (1 + (i >= sizes.n_layers - n_shared)) for i in range(sizes.n_layers)]
    is_double = config.get("use_double_wide_mlp") is True
    n_kv = _of_full_layers(config, "num_global_key_value_heads", "num_key_value_heads")
    kv = [sizes.n_kv_heads if is_w else n_kv for is_w in is_windowed]
    share = config.number("partial_rotary_factor", config.get("partial_rotary_factor"), 1.0)
    if share > 1:
        raise config.error(f"partial_rotary_factor is {share}, more than a whole head")
    return {
        "feed_forward_length": per_layer(n_ff, ValueType.I32) if is_double else sizes.n_ff,
        "attention.head_count_kv": per_layer(kv, ValueType.I32) if n_kv else sizes.n_kv_heads,
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.key_length_swa": sizes.head_dim,
        "attention.value_length_swa": sizes.head_dim,
        "final_logit_softcapping": _soft_cap(config),
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": is_windowed,
        "attention.shared_kv_layers": n_shared,
        "embedding_length_per_layer_input": config.count("hidden_size_per_layer_input"),
        "expert_feed_forward_length": sizes.n_ff_expert if has_experts else None,
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": int(sizes.head_dim * share),
    }


def _soft_cap(config: ModelConfig) -> Any:
    cap = config.get("final_logit_softcapping")
    return f32(config.number("final_logit_softcapping", cap)) if cap else None


def global_head_dim(config: ModelConfig) -> int:
    """Of layers without a window."""
    found = _of_full_layers(config, "global_head_dim", "head_dim")
    if not found:
        raise config.error("global_head_dim is missing")
    return found


def _of_full_layers(config: ModelConfig, name: str, nested: str) -> int:
    """A size of layers without a window: by its own name, or in the settings of single layers."""
    if found := config.count(name):
        return found
    listed, kinds = config.get("per_layer_config"), config.get("layer_types")
    for number, settings in listed.items() if isinstance(listed, dict) else ():
        at = int(number) if str(number).isdecimal() else -1
        is_full = isinstance(kinds, list) and 0 <= at < len(kinds) and kinds[at] == "full_attention"
        value = settings.get(nested) if isinstance(settings, dict) and is_full else None
        if value is not None:
            if type(value) is not int or value < 1:
                raise config.error(f"per_layer_config has {nested} {printable(value)}")
            return value
    return 0


def proportional_factors(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Floats:
    """In layers without a window the first part of each half turns; the rest must not."""
    pairs = global_head_dim(config) // 2
    ropes = config.get("rope_parameters")
    full = ropes.get("full_attention") if isinstance(ropes, dict) else None
    share = full.get("partial_rotary_factor", 1.0) if isinstance(full, dict) else 1.0
    share = config.number("rope_parameters.full_attention.partial_rotary_factor", share)
    factors = np.full(pairs, _UNTURNED, np.float32)
    factors[: int(2 * pairs * share / 2)] = 1.0
    return factors


def put_fused_experts(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    _put_stack(mapping, f"{block}.ffn_gate_up_exps.weight", matrix)


def put_down_experts(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    _put_stack(mapping, f"{block}.ffn_down_exps.weight", matrix)


def _put_stack(mapping: TensorMap, name: str, matrix: StoredMatrix) -> None:
    shape = matrix.tensor.shape
    if len(shape) != 3:
        raise mapping.error(matrix, f"has shape {shape}, which no stack of experts has")
    mapping.take(OutputTensor(name, shape, (MatrixRows.all(matrix),)))
