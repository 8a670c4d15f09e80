"""Keys and tensors of Mamba-2 layers, and of the families that have them beside others."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from ....core.gguf.printable import printable
from ....core.gguf.types import ValueType
from ..checkpoint_family import Keys, Planner, TensorMap
from ..matrix_rows import Change, MatrixRows, Order, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .dense_keys import granite_keys
from .expert_keys import SIGMOID, f32, per_layer
from .rotated_rows import llama_keys, neighbours
from .scaled_keys import rope_value

ANY_LENGTH: Final = 1 << 20  # of models without positions, whose readers ask for a number
OUTSIDE_OF_MAMBA: Final = {
    "embeddings.weight": "token_embd.weight",
    "norm_f.weight": "output_norm.weight",
}
_ATTENTION: Final = ("attention", "full_attention", "*")
_FEED_FORWARD: Final = ("mlp", "-")
_EXPERTS: Final = ("moe", "E")

# Tensors -----------------------------------------------------------------------------------------


def mamba_stems(mixer: str) -> dict[str, str]:
    return {
        f"{mixer}.in_proj": "ssm_in",
        f"{mixer}.conv1d": "ssm_conv1d",  # (channels, 1, kernel) is (channels, kernel)
        f"{mixer}.out_proj": "ssm_out",
    }


def mamba_planners(mixer: str) -> dict[str, Planner]:
    return {
        f"{mixer}.A_log": _put_decay,
        f"{mixer}.D": _put_skip,
        f"{mixer}.dt_bias": _put_wait,
        f"{mixer}.norm.weight": _put_norm,
    }


def _put_decay(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    _put_column(mapping, f"{block}.ssm_a", matrix, Change.NEG_EXP)


def _put_skip(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    _put_column(mapping, f"{block}.ssm_d", matrix)


def _put_column(
    mapping: TensorMap, name: str, matrix: StoredMatrix, change: Change = Change.NONE
) -> None:
    """A number for each head, as a column."""
    parts = (MatrixRows.all(matrix),)
    mapping.take(OutputTensor(name, (matrix.n_rows, 1), parts, change))


def _put_wait(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    mapping.put(f"{block}.ssm_dt.bias", matrix)


def _put_norm(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    """By group."""
    n_groups = _groups(mapping.config)
    if matrix.n_rows % n_groups:
        raise mapping.error(matrix, f"has {matrix.n_rows} numbers for {n_groups} groups")
    shape = (n_groups, matrix.n_rows // n_groups)
    mapping.take(OutputTensor(f"{block}.ssm_norm.weight", shape, (MatrixRows.all(matrix),)))


def turned_part_as_neighbours(mapping: TensorMap, matrix: StoredMatrix) -> Order:
    """Of Bamba, whose heads turn in part. llama.cpp's converter takes whole heads, after which
    others meet than in the checkpoint's class."""
    n, width = _turned(mapping.config, mapping.sizes), mapping.sizes.head_dim
    mapping.check_rows(matrix, matrix.n_rows // width * width)
    heads = np.arange(matrix.n_rows).reshape(-1, width)
    inside = neighbours(n, n)
    return np.concatenate([heads[:, inside], heads[:, n:]], axis=1).reshape(-1)


def _turned(config: ModelConfig, sizes: ModelSizes) -> int:
    """Elements of a head that turn."""
    if n := config.count("attn_rotary_emb"):
        return n
    share = rope_value(config, "partial_rotary_factor")
    return int(sizes.head_dim * config.number("partial_rotary_factor", share, 0.5))


def multiply_falcon(mapping: TensorMap) -> None:
    """Falcon-H1's multipliers go into the weights, one after the other, as they are applied."""
    config = mapping.config

    def number(name: str) -> float:
        return config.number(name, config.get(name), 1.0)

    whole, attention = number("ssm_in_multiplier"), number("attention_in_multiplier")
    gate, down = _numbers(config, "mlp_multipliers", 2)
    factors: dict[str, tuple[Any, ...]] = {
        "token_embd": (number("embedding_multiplier"),),
        "output": (number("lm_head_multiplier"),),
        "attn_q": (attention,),
        "attn_k": (number("key_multiplier"), attention),
        "attn_v": (attention,),
        "attn_output": (number("attention_out_multiplier"),),
        "ssm_in": (whole, _rows_of_ssm_in(config)),
        "ssm_out": (number("ssm_out_multiplier"),),
        "ffn_gate": (gate,),
        "ffn_down": (down,),
    }
    for name, planned in list(mapping.planned.items()):
        found = factors.get(name.removesuffix(".weight").rpartition(".")[2])
        if found is not None and name.endswith(".weight"):
            mapping.planned[name] = replace(planned, factors=found)


def _rows_of_ssm_in(config: ModelConfig) -> Any:
    """A factor for each row of [z | x | B | C | dt]."""
    inner, n_heads = config.size("mamba_d_ssm"), config.size("mamba_n_heads")
    keys = _groups(config) * config.size("mamba_d_state")
    heights = [inner, inner, keys, keys, n_heads]
    return np.repeat(np.array(_numbers(config, "ssm_multipliers", 5), np.float32), heights)


def _numbers(config: ModelConfig, name: str, n: int) -> list[float]:
    found = config.get(name)
    if found is None:
        return [1.0] * n
    if not isinstance(found, list) or len(found) != n:
        raise config.error(f"{name} is {printable(found)}, not a list of {n} numbers")
    return [config.number(name, value) for value in found]


# Keys --------------------------------------------------------------------------------------------


def lfm2_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    kinds = _kinds(config, sizes)
    if config.get("conv_bias") is True:
        raise config.error("conv_bias is true; GGUF has no place for that bias")
    keys: Keys = {
        "attention.head_count_kv": _kv_heads(sizes, [kind in _ATTENTION for kind in kinds]),
        "attention.layer_norm_rms_epsilon": _eps(config),
        "vocab_size": sizes.n_vocab,
        "shortconv.l_cache": config.size("conv_L_cache", default=3),
    }
    if not sizes.n_experts:
        return keys | {"feed_forward_length": _lfm2_width(config)}
    return keys | {
        "expert_feed_forward_length": sizes.n_ff_expert,
        "leading_dense_block_count": config.count("num_dense_layers"),
        "expert_gating_func": SIGMOID,
    }


def _lfm2_width(config: ModelConfig) -> int:
    """Adjusted as its class does, if the configuration says so."""
    width = config.size("block_ff_dim", "intermediate_size")
    if config.get("block_auto_adjust_ff_dim") is not True:
        return width
    multiplier = config.number(
        "block_ffn_dim_multiplier", config.get("block_ffn_dim_multiplier"), 1
    )
    step = config.size("block_multiple_of", default=256)
    return -(-int(multiplier * int(2 * width / 3)) // step) * step


def granite_hybrid_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    keys = granite_keys(config, sizes, rope) | _mamba_keys(config, sizes)
    return keys | {
        "attention.head_count_kv": _kv_heads(sizes, _attention_layers(config, sizes)),
        "context_length": ANY_LENGTH,  # its attention knows no positions
        "rope.scaling.finetuned": False,
        "expert_count": sizes.n_experts,  # said where there are none, too
        "expert_used_count": config.count("num_experts_per_tok"),
    }


def bamba_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return (
        llama_keys(config, sizes, rope)
        | _mamba_keys(config, sizes)
        | {
            "attention.head_count_kv": _kv_heads(sizes, _attention_layers(config, sizes)),
            "rope.dimension_count": _turned(config, sizes),
            "rope.scaling.finetuned": True,
        }
    )


def falcon_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return _mamba_keys(config, sizes) | {
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "vocab_size": sizes.n_vocab,
    }


def mamba2_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return _mamba_keys(config, sizes) | {
        "context_length": ANY_LENGTH,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.layer_norm_rms_epsilon": _eps(config),
        "rope.freq_base": None,
    }


def nemotron_variant(config: ModelConfig) -> str | None:
    kinds = config.get("hybrid_override_pattern", "layers_block_type") or ()
    return "nemotron_h_moe" if any(kind in _EXPERTS for kind in kinds) else None


def without_experts(config: ModelConfig, n_layers: int, n_mtp: int) -> Keys:
    """`transformers` saves numbers of experts where there are none."""
    return {"n_experts": 0, "n_experts_used": 0, "n_ff_expert": 0, "n_ff_shared": 0}


def nemotron_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    kinds = _kinds(config, sizes)
    widths = [sizes.n_ff if kind in _FEED_FORWARD else 0 for kind in kinds]
    has_attention = [kind in _ATTENTION for kind in kinds] + [True] * sizes.n_mtp
    return _mamba_keys(config, sizes) | {
        "feed_forward_length": per_layer(widths, ValueType.I32),
        "attention.head_count_kv": _kv_heads(sizes, has_attention),
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        # Its readers look for this one.
        "attention.layer_norm_epsilon": _eps(config),
        "attention.layer_norm_rms_epsilon": None,
        "context_length": ANY_LENGTH,  # its attention knows no positions
        "rope.dimension_count": rope.n_rot,
        "rope.freq_base": None,
        "rope.scaling.finetuned": False,
        "vocab_size": sizes.n_vocab,
    }


def nemotron_moe_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    kinds, width = _kinds(config, sizes), sizes.n_ff_expert
    scale = config.number("routed_scaling_factor", config.get("routed_scaling_factor"), 1.0)
    widths = [width * (kind in _EXPERTS) for kind in kinds] + [width] * sizes.n_mtp
    return nemotron_keys(config, sizes, rope) | {
        "feed_forward_length": per_layer(widths, ValueType.I32),
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": config.size("moe_shared_expert_intermediate_size"),
        "expert_shared_count": config.count("n_shared_experts"),
        "expert_weights_norm": config.get("norm_topk_prob") is not False,
        "expert_weights_scale": f32(scale),
        "expert_group_count": config.size("n_group", default=1),
        "expert_group_used_count": config.count("topk_group") or None,
        "moe_latent_size": config.count("moe_latent_size") or None,
    }


def nemotron_head_name(name: str) -> str:
    """A layer with attention and one with experts are one block."""
    if name == "mtp.layers.1.norm.weight":
        return "mtp.layers.0.post_attention_norm.weight"
    return name.replace("mtp.layers.1.", "mtp.layers.0.", 1)


def granite_variant(config: ModelConfig) -> str | None:
    """Without a Mamba layer, as Granite 4 Micro, it is Granite."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or any(kind not in _ATTENTION for kind in kinds):
        return None
    return "granitemoe" if config.count("num_local_experts") else "granite"


def _mamba_keys(config: ModelConfig, sizes: ModelSizes) -> Keys:
    n_heads = config.size("mamba_n_heads", "mamba_num_heads", "num_heads")
    head_dim = config.size("mamba_d_head", "mamba_head_dim", "head_dim")
    return {
        "ssm.conv_kernel": config.size("mamba_d_conv", "conv_kernel", default=4),
        "ssm.state_size": config.size("mamba_d_state", "ssm_state_size", "state_size"),
        "ssm.group_count": _groups(config),
        "ssm.inner_size": n_heads * head_dim,
        "ssm.time_step_rank": n_heads,
    }


def _groups(config: ModelConfig) -> int:
    return config.size("mamba_n_groups", "n_groups", default=1)


def _eps(config: ModelConfig) -> Any:
    names = ("norm_eps", "layer_norm_epsilon", "rms_norm_eps")
    return f32(config.number("norm_eps", config.get(*names), 1e-5))


def _kv_heads(sizes: ModelSizes, has_attention: list[bool]) -> Any:
    """None where a layer has no attention: that is how readers know."""
    return per_layer([sizes.n_kv_heads * has for has in has_attention], ValueType.I32)


def _kinds(config: ModelConfig, sizes: ModelSizes) -> list[str]:
    """Words, or letters of a pattern."""
    kinds = config.get("hybrid_override_pattern", "layers_block_type", "layer_types")
    if not isinstance(kinds, list | str) or len(kinds) != sizes.n_layers:
        raise config.error(f"layer_types does not name the {sizes.n_layers} layers")
    return [str(kind) for kind in kinds]


def _attention_layers(config: ModelConfig, sizes: ModelSizes) -> list[bool]:
    indices = config.get("attn_layer_indices")
    if isinstance(indices, list):
        return [i in indices for i in range(sizes.n_layers)]
    return [kind in _ATTENTION for kind in _kinds(config, sizes)]
