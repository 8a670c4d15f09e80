"""Tiny random models of every family: a `transformers` model and the GGUF file of the same weights.

Everything is randomised (norms, biases, decays): default initialisation would leave the +1 of norm
weights and most biases untested. Files are written with the `gguf` package, names and orders
are mapped by `convert`.
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

from nextn.convert.hf.rope_setting import llama3_factors

from .hf_tensors import Rules, Tensors, map_tensors
from .vocab import N_VOCAB, tokenizer_metadata

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


# YaRN's ramp ends a hair before a whole pair (2.00), where llama.cpp ends it.
OSS_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 172235.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
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
    "gpt-oss": Family(
        "gpt-oss",
        "GptOssForCausalLM",
        "GptOssConfig",
        {"num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 32, "sliding_window": 8}
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": OSS_ROPE},
        gguf_keys={
            "expert_feed_forward_length": 32,
            "attention.sliding_window": 8,
            "rope.freq_base": 172235.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        },
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
    family: Any  # a row of a table of families, with GGUF's word as `architecture`
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
    randomise(hf, family)
    head = build_head(hf, family) if mtp else None
    tensors = _map_tensors(hf, head, family, config)
    keys = _keys(family, config, n_nextn=int(mtp))
    if edit is not None:
        edit(keys, tensors)
    path = folder / f"{name}{'-mtp' if mtp else ''}-{quantise}.gguf"
    write(path, family.architecture, keys, tensors, quantise)
    return TinyModel(family, hf, head, path)


def randomise(model: torch.nn.Module, family: Family) -> None:
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


def build_head(hf: Any, family: Family) -> Any:
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
    randomise(head, family)
    with torch.no_grad():
        for parameter in head.parameters():
            if id(parameter) in shared:
                parameter.copy_(saved[id(parameter)])
    return head


# Tensors -----------------------------------------------------------------------------------------

MTP_NAMES = {
    "layers.0.eh_proj.": "mtp.fc.",
    "layers.0.enorm.": "mtp.pre_fc_norm_embedding.",
    "layers.0.hnorm.": "mtp.pre_fc_norm_hidden.",
    "layers.0.post_norm.": "mtp.norm.",
    "layers.0.mtp_block.": "mtp.layers.0.",
}


def _map_tensors(hf: Any, head: Any, family: Family, config: Any) -> Tensors:
    rules = Rules(
        family.architecture,
        config.num_hidden_layers,
        getattr(config, "head_dim", None) or 0,
        getattr(config, "linear_num_key_heads", 0),
        getattr(config, "linear_num_value_heads", 0),
        getattr(config, "linear_value_head_dim", 0),
    )
    state = dict(hf.state_dict())
    for name, value in (head.state_dict() if head is not None else {}).items():
        for old, new in MTP_NAMES.items():
            if name.startswith(old):
                state[new + name.removeprefix(old)] = value
    out = map_tensors(((n, v.detach().float().numpy()) for n, v in state.items()), rules)
    if config.rope_parameters["rope_type"] == "llama3":
        out["rope_freqs.weight"] = llama3_factors(config.rope_parameters, config.head_dim)
    return out


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
    for key, value in (tokenizer_metadata() | keys).items():  # keys may be of another one
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
    is_matrix = array.ndim >= 2 and name.endswith(".weight")
    return is_matrix and array.shape[-1] % 32 == 0 and not any(k in name for k in kept)
