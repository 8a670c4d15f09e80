"""Kimi-Linear: keys and tensors of its delta attention; its latent attention is DeepSeek's."""

from __future__ import annotations

from typing import Any, Final

from ....core.gguf.types import ValueType
from ...heads.family_table import find_mtp_family
from ..checkpoint_family import Keys, Planner, TensorMap
from ..matrix_rows import Change, MatrixRows, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import SIGMOID, f32, leading_dense, per_layer
from .latent_rows import latent_attention_keys

_DELTA: Final = {
    "f_a_proj": "ssm_f_a", "f_b_proj": "ssm_f_b", "g_a_proj": "ssm_g_a", "g_b_proj": "ssm_g_b",
    "b_proj": "ssm_beta", "o_norm": "ssm_norm",
}  # fmt: skip
STEMS: Final = {
    **find_mtp_family("deepseek2").stems,
    **{f"self_attn.{name}": stem for name, stem in _DELTA.items()},
}
WHOLE: Final = {"self_attn.dt_bias": "ssm_dt.bias"}


def _put_convolution(kind: str) -> Planner:
    def put(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
        """With axes that readers ask for."""
        shape = (1, matrix.n_rows, 1, matrix.n_columns)
        name = f"{block}.ssm_conv1d_{kind}.weight"
        mapping.take(OutputTensor(name, shape, (MatrixRows.all(matrix),)))

    return put


def _put_decay(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    shape, parts = matrix.tensor.shape, (MatrixRows.all(matrix),)
    mapping.take(OutputTensor(f"{block}.ssm_a", shape, parts, Change.NEG_EXP))


PLANNERS: Final[dict[str, Planner]] = {
    "self_attn.A_log": _put_decay,
    **{f"self_attn.{kind}_conv1d.weight": _put_convolution(kind) for kind in "qkv"},
}


def kimi_sizes(config: ModelConfig, n_layers: int, n_mtp: int) -> Keys:
    return {"head_dim": config.size("qk_rope_head_dim"), "n_kv_heads": 1}


def kimi_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    latent = latent_attention_keys(config, sizes)
    del latent["attention.value_length"]
    has_attention = _attention_layers(config, sizes)
    return latent | {
        "attention.head_count_kv": per_layer([int(has) for has in has_attention], ValueType.I32),
        "ssm.conv_kernel": _linear(config, "short_conv_kernel_size", "linear_conv_kernel_dim"),
        "kda.head_dim": _linear(config, "head_dim", "linear_head_dim"),
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_count": config.count("num_shared_experts"),
        "leading_dense_block_count": leading_dense(config, 0),
        "expert_weights_scale": f32(config.number("scale", config.get("routed_scaling_factor"), 1)),
        "expert_gating_func": SIGMOID,
        "expert_group_used_count": config.get("topk_group"),
        "rope.freq_base": None,  # nothing turns
    }


def _linear(config: ModelConfig, name: str, other: str) -> int:
    """A size of the hub's `linear_attn_config`, or as `transformers` saves it."""
    inner = config.get("linear_attn_config")
    if isinstance(inner, dict):
        config = ModelConfig(config.label, {name: inner.get(name)})
    return config.size(name if isinstance(inner, dict) else other)


def _attention_layers(config: ModelConfig, sizes: ModelSizes) -> list[bool]:
    inner: Any = config.get("linear_attn_config")
    if isinstance(inner, dict) and isinstance(inner.get("full_attn_layers"), list):
        return [i + 1 in inner["full_attn_layers"] for i in range(sizes.n_layers)]
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != sizes.n_layers:
        raise config.error(f"linear_attn_config does not name the {sizes.n_layers} layers")
    return [kind == "full_attention" for kind in kinds]
