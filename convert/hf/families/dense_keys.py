"""Keys of families that differ from Llama and Qwen in little: scales, caps, windows."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from ....core.gguf.printable import printable
from ..checkpoint_family import Keys, TensorMap
from ..matrix_rows import MatrixRows, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import f32
from .layer_kinds import windowed_layers
from .rotated_rows import llama_keys
from .scaled_keys import put_halves, rope_value

_GRANITE_SCALES: Final = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_GEMMA2_PERIOD: Final = 2  # readers' own: a layer with a window, one without
_GEMMA2_27B: Final = 46  # layers


def rotated_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return {"rope.dimension_count": rope.n_rot}


def qwen2_moe_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    """Readers leave the weights of experts as they are."""
    return {
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_feed_forward_length": sizes.n_ff_shared or None,
        "expert_weights_norm": config.get("norm_topk_prob") is True or None,
    }


def put_shared_gate(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    """One row, which this family keeps as a matrix."""
    shape = (matrix.n_rows, matrix.n_columns)
    name = f"{block}.ffn_gate_inp_shexp.weight"
    mapping.take(OutputTensor(name, shape, (MatrixRows.all(matrix),)))


def windowed_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    """Of OLMo, where all layers but every fourth have a window if nothing says which."""
    if config.get("sliding_window") is None:
        return {}
    fourth = [(i + 1) % 4 != 0 for i in range(sizes.n_layers)]
    named = config.get("layer_types", "sliding_window_pattern")
    is_windowed = fourth if named is None else windowed_layers(config, sizes.n_layers)
    return {
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": is_windowed,
    }


def exaone4_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return windowed_keys(config, sizes, rope) | {"vocab_size": sizes.n_vocab}


def gemma2_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    is_windowed = [(i + 1) % _GEMMA2_PERIOD != 0 for i in range(sizes.n_layers)]
    if config.get("layer_types") not in (None, _names(is_windowed)):
        raise config.error("layer_types are not one with a window, then one without")
    scalar = config.number("query_pre_attn_scalar", config.get("query_pre_attn_scalar"), 256.0)
    wide = sizes.n_embd // sizes.n_heads if sizes.n_layers == _GEMMA2_27B else sizes.head_dim
    return {
        "rope.freq_base": None if rope.theta == 1e4 else f32(rope.theta),
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        **{name: f32(config.number(name, config.get(name))) for name in caps},
        "attention.sliding_window": config.size("sliding_window"),
        "attention.scale": None if scalar == wide else f32(scalar**-0.5),
    }


def _names(is_windowed: list[bool]) -> list[str]:
    return ["sliding_attention" if windowed else "full_attention" for windowed in is_windowed]


def granite_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    scales = {key: config.get(name) for key, name in _GRANITE_SCALES.items()}
    return (
        llama_keys(config, sizes, rope)
        | {key: f32(config.number(key, value)) for key, value in scales.items() if value}
        | {"attention.key_length": None, "attention.value_length": None}
        | {"expert_shared_feed_forward_length": config.get("shared_intermediate_size")}
    )


def put_experts(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    """Gate and up of all experts of Granite."""
    mapping.add_stacked(block, "gate_up", matrix)


def put_shared_or_dense(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    """What is the shared expert of a mixture is the feed-forward layer of a block without one."""
    ending = _of_shared(mapping)
    put_halves(mapping, matrix, *(f"{block}.ffn_{kind}{ending}.weight" for kind in ("gate", "up")))


def put_shared_or_dense_down(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    mapping.put(f"{block}.ffn_down{_of_shared(mapping)}.weight", matrix)


def _of_shared(mapping: TensorMap) -> str:
    return "_shexp" if mapping.sizes.n_experts else ""


def phi3_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    trained = _trained_length(config)
    longest = config.size("max_position_embeddings")
    keys: dict[str, Any] = {
        "rope.scaling.original_context_length": trained,
        "rope.dimension_count": rope.n_rot,
        "attention.sliding_window": config.count("sliding_window"),
        "attention.key_length": None,
        "attention.value_length": None,
    }
    if _factors(config, "long_factor", rope.n_rot):
        stretch = math.log(max(longest / trained, 1.0)) / math.log(trained)
        keys["rope.scaling.attn_factor"] = f32(math.sqrt(1 + stretch))
    return keys


def put_rope_factors(mapping: TensorMap) -> None:
    """Two tensors, one of which is used, by the length of the context."""
    config = mapping.config
    share = config.number("partial_rotary_factor", rope_value(config, "partial_rotary_factor"), 1)
    for kind in ("long", "short"):
        if values := _factors(config, f"{kind}_factor", int(mapping.sizes.head_dim * share)):
            name, made = f"rope_factors_{kind}.weight", np.array(values, np.float32)
            mapping.take(OutputTensor(name, made.shape, (), constant=made))


def _trained_length(config: ModelConfig) -> int:
    found = rope_value(config, "original_max_position_embeddings")
    if found is None:
        return config.size("max_position_embeddings")
    if type(found) is not int or found < 2:
        raise config.error(f"original_max_position_embeddings is {printable(found)}, not a size")
    return found


def _factors(config: ModelConfig, name: str, n_rot: int) -> list[float]:
    values = rope_value(config, name)
    if values is None:
        return []
    is_list = isinstance(values, list) and len(values) == n_rot // 2
    if not is_list or any(type(value) not in (int, float) or value <= 0 for value in values):
        raise config.error(f"{name} is not a list of {n_rot // 2} positive numbers")
    return list(map(float, values))
