"""The keys of an architecture, with llama.cpp's names, types and order."""

from __future__ import annotations

from typing import Any

from ...core.gguf.types import Typed, ValueType
from .config import Config
from .families import Family
from .rope import RopeSetting
from .sizes import Sizes


def model_keys(config: Config, family: Family, sizes: Sizes, rope: RopeSetting) -> dict[str, Any]:
    own: dict[str, Any] = {
        "block_count": sizes.n_blocks,
        "context_length": config.size("max_position_embeddings"),
        "embedding_length": sizes.n_embd,
        **({"feed_forward_length": sizes.n_ff} if sizes.n_ff else {}),
        "attention.head_count": sizes.n_heads,
        "attention.head_count_kv": sizes.n_kv_heads,
        **_rope_scaling(rope),
        **({"rope.dimension_sections": _i32(rope.sections)} if rope.sections else {}),
        "rope.freq_base": _f32(rope.theta),
        "attention.layer_norm_rms_epsilon": _f32(
            config.number("rms_norm_eps", default=family.rms_eps)
        ),
        **_expert_counts(sizes),
    }
    if sizes.head_dim * sizes.n_heads != sizes.n_embd or config.get("head_dim") is not None:
        own |= {"attention.key_length": sizes.head_dim, "attention.value_length": sizes.head_dim}
    own |= _of_family(config, family, sizes, rope)
    if sizes.n_mtp:
        own["nextn_predict_layers"] = sizes.n_mtp
    return {f"{family.architecture}.{key}": value for key, value in own.items()}


def _rope_scaling(rope: RopeSetting) -> dict[str, Any]:
    return {
        f"rope.scaling.{key}": _f32(value) if isinstance(value, float) else value
        for key, value in rope.scaling.items()
    }


def _expert_counts(sizes: Sizes) -> dict[str, Any]:
    if not sizes.n_experts:
        return {}
    return {"expert_count": sizes.n_experts, "expert_used_count": sizes.n_experts_used}


def _of_family(config: Config, family: Family, sizes: Sizes, rope: RopeSetting) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if family.architecture == "llama":
        out |= {"vocab_size": sizes.n_vocab, "rope.dimension_count": rope.n_rot}
    if sizes.n_experts and family.architecture != "llama":
        out["expert_feed_forward_length"] = sizes.n_ff_expert
        if sizes.n_ff_shared:
            out["expert_shared_feed_forward_length"] = sizes.n_ff_shared
        if config.get("norm_topk_prob") is False:
            out["expert_weights_norm"] = False
    if family.is_hybrid:
        out |= {
            "ssm.conv_kernel": sizes.n_conv,
            "ssm.state_size": sizes.linear_dim,
            "ssm.group_count": sizes.n_key_heads,
            "ssm.time_step_rank": sizes.n_value_heads,
            "ssm.inner_size": sizes.linear_dim * sizes.n_value_heads,
            "attention.recurrent_layers": list(sizes.recurrent),
            "full_attention_interval": config.size("full_attention_interval", default=4),
            "rope.dimension_count": rope.n_rot,
        }
    return out


def _f32(value: float) -> Typed:
    return Typed(ValueType.F32, value)


def _i32(values: list[int]) -> Typed:
    return Typed(ValueType.ARRAY, values, ValueType.I32)
