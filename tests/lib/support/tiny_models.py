"""Tiny random models of every family: a `transformers` model and the GGUF file of the same weights.

Everything is randomised (norms, biases, decays): default initialisation would leave the +1 of norm
weights and most biases untested. Files are written with the `gguf` package, names mapped here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from .vocab import N_VOCAB, tokenizer_metadata

Tensors = dict[str, NDArray[np.float32]]

COMMON: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
TWO_LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "head_dim": 16}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
HYBRID: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
SHARED = {"shared_expert_intermediate_size": 32}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Family:
    architecture: str  # GGUF's word
    hf_class: str
    hf_config: str
    settings: dict[str, Any]
    hybrid: bool = False
    plus_one_norms: bool = False  # transformers computes x * (1 + w)
    gguf_keys: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "llama": Family(
        "llama", "LlamaForCausalLM", "LlamaConfig", {**TWO_LAYERS, "rope_parameters": LLAMA3_ROPE}
    ),
    "llama-yarn": Family(
        "llama",
        "MistralForCausalLM",
        "MistralConfig",
        {**TWO_LAYERS, "sliding_window": None, "rope_parameters": YARN_ROPE},
        gguf_keys={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
    ),
    "mixtral": Family(
        "llama",
        "MixtralForCausalLM",
        "MixtralConfig",
        {**TWO_LAYERS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
        | {"rope_parameters": DEFAULT_ROPE},
    ),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", "Qwen2Config", {"num_hidden_layers": 2}),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", "Qwen3Config", TWO_LAYERS),
    "qwen3moe": Family(
        "qwen3moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**TWO_LAYERS, **EXPERTS}
    ),
    "qwen3next": Family(
        "qwen3next",
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**HYBRID, **EXPERTS, **SHARED},
        hybrid=True,
        plus_one_norms=True,
    ),
    "qwen35": Family(
        "qwen35",
        "Qwen3_5ForCausalLM",
        "Qwen3_5TextConfig",
        HYBRID,
        hybrid=True,
        plus_one_norms=True,
        gguf_keys={"rope.dimension_sections": [2, 1, 1, 0]},
    ),
    "qwen35moe": Family(
        "qwen35moe",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextConfig",
        {**HYBRID, **EXPERTS, **SHARED},
        hybrid=True,
        plus_one_norms=True,
        gguf_keys={"rope.dimension_sections": [2, 1, 1, 0]},
    ),
}
WITH_MTP = ("qwen3next", "qwen35", "qwen35moe")


@dataclass
class TinyModel:
    family: Family
    hf: Any  # the transformers model
    mtp: Any  # its MtpModel, or None
    path: Path


def build_tiny(
    name: str,
    folder: Path,
    *,
    mtp: bool = False,
    seed: int = 0,
    quantise: str = "F32",
    edit: Callable[[dict[str, Any], Tensors], None] | None = None,
) -> TinyModel:
    """Make a model and write its GGUF; `edit` may change keys and tensors before that."""
    import transformers

    family = FAMILIES[name]
    config = getattr(transformers, family.hf_config)(**COMMON | family.settings)
    torch.manual_seed(seed)
    hf = getattr(transformers, family.hf_class)(config).eval().float()
    _randomise(hf, family)
    head = _build_mtp(hf, family) if mtp else None
    tensors = _map_tensors(hf.state_dict(), family, config)
    if head is not None:
        tensors |= _map_mtp(head.state_dict(), family, config)
    keys = _keys(family, config, n_nextn=int(mtp))
    if edit is not None:
        edit(keys, tensors)
    path = folder / f"{name}{'-mtp' if mtp else ''}-{quantise}.gguf"
    write(path, family.architecture, keys, tensors, quantise)
    return TinyModel(family, hf, head, path)


def _randomise(model: torch.nn.Module, family: Family) -> None:
    """Weights of a size that gives logits of standard deviation about 1."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("A_log"):
                parameter.uniform_(-2.0, 1.5)
            elif name.endswith("dt_bias"):
                parameter.normal_(0.5, 0.5)
            elif "norm" in name and parameter.ndim == 1:
                centre = 0.0 if family.plus_one_norms and "linear_attn" not in name else 1.0
                parameter.normal_(centre, 0.2)
            elif parameter.ndim == 1:
                parameter.normal_(0.0, 0.3)
            elif "conv1d" in name:
                parameter.normal_(0.0, 0.5)
            elif "embed_tokens" in name:
                parameter.normal_(0.0, 1.0)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)


def _build_mtp(hf: Any, family: Family) -> Any:
    """transformers' own, architecture-agnostic MTP stack over the trunk."""
    from transformers.modeling_layers import MtpModel

    hf.config.num_mtp_layers = 1
    if getattr(hf.config, "layer_types", None) is not None:
        hf.config.mtp_layer_types = ["full_attention"]
    if getattr(hf.config, "mlp_layer_types", None) is not None:
        hf.config.mtp_mlp_layer_types = ["sparse"]
    head = MtpModel(hf, 1).eval().float()
    shared = {id(p) for p in hf.parameters()}
    saved = {id(p): p.detach().clone() for p in hf.parameters()}
    _randomise(head, family)
    with torch.no_grad():
        for parameter in head.parameters():
            if id(parameter) in shared:
                parameter.copy_(saved[id(parameter)])
    return head


# Names -------------------------------------------------------------------------------------------

GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
MTP_GLOBAL = {
    "eh_proj.weight": "nextn.eh_proj.weight",
    "enorm.weight": "nextn.enorm.weight",
    "hnorm.weight": "nextn.hnorm.weight",
    "post_norm.weight": "nextn.shared_head_norm.weight",
}


def _map_tensors(state: dict[str, torch.Tensor], family: Family, config: Any) -> Tensors:
    out: Tensors = {}
    for name, value in state.items():
        array = value.detach().float().numpy()
        if name in GLOBAL:
            out[GLOBAL[name]] = array + (family.plus_one_norms and "norm" in name)
        elif name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            for stem, mapped in _map_block(rest, array, family, config).items():
                out[f"blk.{layer}.{stem}"] = mapped
    if config.rope_parameters["rope_type"] == "llama3":
        out["rope_freqs.weight"] = _llama3_factors(config)
    return {name: np.ascontiguousarray(array, np.float32) for name, array in out.items()}


def _map_mtp(state: dict[str, torch.Tensor], family: Family, config: Any) -> Tensors:
    out: Tensors = {}
    prefix = f"blk.{config.num_hidden_layers}."
    for name, value in state.items():
        if not name.startswith("layers.0."):
            continue
        rest, array = name.removeprefix("layers.0."), value.detach().float().numpy()
        if rest in MTP_GLOBAL:
            out[prefix + MTP_GLOBAL[rest]] = array + (family.plus_one_norms and "norm" in rest)
        elif rest.startswith("mtp_block."):
            for stem, mapped in _map_block(
                rest.removeprefix("mtp_block."), array, family, config
            ).items():
                out[prefix + stem] = mapped
    return {name: np.ascontiguousarray(array, np.float32) for name, array in out.items()}


def _map_block(rest: str, array: NDArray[np.float32], family: Family, config: Any) -> Tensors:
    """One tensor of a block under its GGUF name, reordered as llama.cpp's converter does."""
    if rest.endswith("mlp.experts.gate_up_proj"):
        gate, up = np.split(array, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if rest.endswith("mlp.experts.down_proj"):
        return {"ffn_down_exps.weight": array}
    tiled = family.architecture in ("qwen35", "qwen35moe")
    if rest == "linear_attn.A_log":
        return {"ssm_a": _tile(-np.exp(array), config, 1, tiled)}
    if rest == "linear_attn.dt_bias":
        return {"ssm_dt.bias": _tile(array, config, 1, tiled)}
    if rest == "linear_attn.in_proj_qkvz.weight":
        return _split_qkvz(array, config)
    stem, _, kind = rest.rpartition(".")
    mapped = IN_BLOCK[stem]
    if mapped == "ffn_norm" and family.hybrid:
        mapped = "post_attention_norm"
    if family.plus_one_norms and mapped.endswith("norm") and mapped != "ssm_norm":
        array = array + 1
    if family.architecture == "llama" and mapped in ("attn_q", "attn_k"):
        array = _neighbours(array, config.head_dim)
    if mapped in ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha", "ssm_conv1d", "ssm_out"):
        array = _tile_matrix(mapped, array, config, tiled)
    return {f"{mapped}.{kind}": array}


def _neighbours(array: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rows of each head from halves to neighbours: what lets rope turn (2i, 2i + 1)."""
    heads = array.reshape(-1, 2, head_dim // 2, *array.shape[1:])
    return heads.swapaxes(1, 2).reshape(array.shape)


def _tile(array: NDArray[np.float32], config: Any, width: int, tiled: bool) -> NDArray[np.float32]:
    """Value heads along the first axis, from grouped by key head to tiled."""
    if not tiled:
        return array
    n_key = config.linear_num_key_heads
    share = config.linear_num_value_heads // n_key
    heads = array.reshape(n_key, share, width, *array.shape[1:])
    return heads.swapaxes(0, 1).reshape(array.shape)


def _tile_matrix(
    stem: str, array: NDArray[np.float32], config: Any, tiled: bool
) -> NDArray[np.float32]:
    dim = config.linear_value_head_dim
    n_keys = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if stem == "ssm_conv1d":
        array = array[:, 0, :]
    if stem in ("attn_qkv", "ssm_conv1d"):
        return np.concatenate([array[:n_keys], _tile(array[n_keys:], config, dim, tiled)])
    if stem == "ssm_out":
        return _tile(array.T, config, dim, tiled).T
    return _tile(array, config, dim if stem == "attn_gate" else 1, tiled)


def _split_qkvz(array: NDArray[np.float32], config: Any) -> Tensors:
    """Rows per key head [q, k, v.., z..] to [all q, all k, all v] and [all z]."""
    n_key, dim = config.linear_num_key_heads, config.linear_key_head_dim
    share = config.linear_num_value_heads // n_key
    groups = array.reshape(n_key, -1, array.shape[1])
    q, k, v, z = np.split(groups, np.cumsum([dim, dim, share * dim]), axis=1)
    flat = [part.reshape(-1, array.shape[1]) for part in (q, k, v, z)]
    return {"attn_qkv.weight": np.concatenate(flat[:3]), "attn_gate.weight": flat[3]}


def _llama3_factors(config: Any) -> NDArray[np.float32]:
    """The divisors that llama.cpp's converter stores for llama3 rope scaling."""
    rope = config.rope_parameters
    i = np.arange(0, config.head_dim, 2)
    turn = 2 * np.pi * rope["rope_theta"] ** (i / config.head_dim)
    context, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (context / turn - low) / (high - low)
    mixed = 1 / ((1 - smooth) / factor + smooth)
    out = np.where(turn < context / high, 1.0, np.where(turn > context / low, factor, mixed))
    return out.astype(np.float32)


# Keys and file -----------------------------------------------------------------------------------


def _keys(family: Family, config: Any, n_nextn: int) -> dict[str, Any]:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // 4
    keys: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers + n_nextn,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": head_dim // 4 if family.hybrid else head_dim,
    }
    n_expert = getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0)
    if n_expert:
        keys |= {
            "expert_count": n_expert,
            "expert_used_count": config.num_experts_per_tok,
        }
        if hasattr(config, "moe_intermediate_size"):
            keys["expert_feed_forward_length"] = config.moe_intermediate_size
    if hasattr(config, "shared_expert_intermediate_size"):
        keys["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if family.hybrid:
        keys |= {
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.group_count": config.linear_num_key_heads,
            "ssm.time_step_rank": config.linear_num_value_heads,
            "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
            "full_attention_interval": 4,
        }
    if n_nextn:
        keys["nextn_predict_layers"] = n_nextn
    return {f"{family.architecture}.{k}": v for k, v in (keys | family.gguf_keys).items()}


def write(
    path: Path, architecture: str, keys: dict[str, Any], tensors: Tensors, quantise: str = "F32"
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.stem)
    for key, value in (keys | tokenizer_metadata()).items():
        _add_key(writer, key, value)
    wanted = gguf.GGMLQuantizationType[quantise]
    for name, array in tensors.items():
        kind = wanted if _may_quantise(name, array) else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(array, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_key(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _may_quantise(name: str, array: NDArray[np.float32]) -> bool:
    kept = ("norm", "ffn_gate_inp", "ssm_conv1d")
    return array.ndim >= 2 and name.endswith(".weight") and not any(k in name for k in kept)
