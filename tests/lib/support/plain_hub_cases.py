"""Checkpoints of families that are attention and a feed-forward layer behind norms."""

from __future__ import annotations

from typing import Any

import torch

from .hub_case import Config, HubCase, Tensors, fuse_qkv
from .state_hub_cases import STATE_CASES
from .tiny_models import COMMON, EXPERTS, LLAMA3_ROPE

# What llama.cpp computes otherwise: it heeds windows of exaone4 in models of 64 layers alone.
# Its chunks of llama4 have 8192 cells, and queries grow from there on.
UNLIKE_LLAMA_CPP = ("exaone4-windows", "llama4-chunks")

LAYERS: Config = {"num_hidden_layers": 2}
FOUR: Config = {"num_hidden_layers": 4}
TIED: Config = {"tie_word_embeddings": True}
GRANITE: Config = LAYERS | {
    "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.3,
    "logits_scaling": 0.7, "eos_token_id": 511,
}  # fmt: skip
GRANITE_MOE: Config = GRANITE | {
    "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256,
    "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.25, 1.5, 2.0, 3.0, 4.0],
    "long_factor": [1.0, 1.25, 1.5, 2.0, 3.0, 4.0],
}  # fmt: skip


MINISTRAL_ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
    "original_max_position_embeddings": 16, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
LLAMA4: Config = {
    "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 32, "intermediate_size_mlp": 96,
    "num_local_experts": 4, "eos_token_id": 511, "bos_token_id": 510,
    "rope_parameters": LLAMA3_ROPE,
}  # fmt: skip
BAILING_NAMES = {
    "self_attn.qkv_proj": "attention.query_key_value", "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm", "model.embed_tokens": "model.word_embeddings",
    "self_attn.k_norm": "attention.key_layernorm",
    "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
}  # fmt: skip
SECTIONS = {
    "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2],
    "mrope_interleaved": True,
}  # fmt: skip
EYES: Config = {
    "depth": 1, "embed_dim": 32, "hidden_size": 64, "intermediate_size": 32, "num_heads": 2,
    "out_hidden_size": 64, "deepstack_visual_indexes": [],
}  # fmt: skip


def _cohere(config: Config) -> None:
    config["rotary_pct"] = 1.0  # which `transformers` does not save
    del config["rms_norm_eps"]


def _bailing(config: Config) -> None:
    """No class of `transformers`: the layers are those of GLM with other names."""
    config |= {
        "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe_v2",
        "num_experts": config.pop("n_routed_experts"), "score_function": "sigmoid",
        "num_shared_experts": config.pop("n_shared_experts"), "partial_rotary_factor": 0.5,
    }  # fmt: skip
    config.pop("mlp_layer_types", None)
    config.pop("num_nextn_predict_layers", None)
    config["first_k_dense_replace"] = 1


def _bailing_names(tensors: Tensors) -> None:
    fuse_qkv(tensors)
    for name in list(tensors):
        other = name
        for old, new in BAILING_NAMES.items():
            other = other.replace(old, new)
        tensors[other] = tensors.pop(name)


def _llama4(config: Config) -> None:
    """With eyes, and the older names of rope."""
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "no_rope_layers": []}
    for name in ("layer_types", "moe_layers"):
        config.pop(name, None)
    text = dict(config)
    config.clear()
    config |= {
        "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
        "text_config": text, "vision_config": {"hidden_size": 8},
    }  # fmt: skip


def _llama4_names(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[f"language_model.{name}"] = tensors.pop(name)
    tensors["vision_model.patch_embedding.linear.weight"] = torch.zeros(8, 12)
    tensors["multi_modal_projector.linear_1.weight"] = torch.zeros(64, 8)


def _turn_experts(tensors: Tensors) -> None:
    """The hub has columns where `transformers` saves rows."""
    for name, value in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = value.transpose(1, 2).contiguous()


def _case(
    architecture: str, hf: str, *settings: Config, hf_text: bool = False, **how: Any
) -> HubCase:
    """`hf`: as in the names of its classes. `hf_text`: its configuration is that of a text part."""
    merged: Config = {}
    for each in settings:
        merged |= each
    return HubCase(
        architecture,
        hf_class=f"{hf}ForCausalLM",
        hf_config=f"{hf}TextConfig" if hf_text else f"{hf}Config",
        settings=merged,
        **how,
    )


PLAIN_CASES: dict[str, HubCase] = {
    "qwen2moe": _case(
        "qwen2moe", "Qwen2Moe", LAYERS,
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 48},
    ),
    "seed_oss": _case("seed_oss", "SeedOss", LAYERS, {"head_dim": 32, "attention_bias": True}),
    "smollm3": _case("smollm3", "SmolLM3", FOUR, {"pad_token_id": 0}),
    "granite": _case("granite", "Granite", GRANITE),
    "granitemoe": _case("granitemoe", "GraniteMoe", GRANITE_MOE),
    "granitemoe-shared": _case(
        "granitemoe", "GraniteMoeShared", GRANITE_MOE, {"shared_intermediate_size": 48}
    ),
    "phi": _case(
        "phi3", "Phi3", LAYERS,
        {"pad_token_id": 0, "original_max_position_embeddings": 512, "sliding_window": None},
    ),
    "phi-longrope": _case(
        "phi3", "Phi3", LAYERS,
        {"pad_token_id": 0, "max_position_embeddings": 1024, "rope_parameters": LONGROPE,
         "original_max_position_embeddings": 256, "sliding_window": None},
    ),
    "glm4": _case(
        "glm4", "Glm4", LAYERS,
        {"intermediate_size": 96, "head_dim": 16, "attention_bias": True, "pad_token_id": 0},
    ),
    "olmo2": _case("olmo2", "Olmo2", LAYERS),
    "olmo3": _case("olmo2", "Olmo3", FOUR, {"sliding_window": 8}),
    "exaone4": _case(
        "exaone4", "Exaone4", LAYERS,
        {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "exaone4-windows": _case(
        "exaone4", "Exaone4", FOUR, {"sliding_window": 8, "sliding_window_pattern": 4}
    ),
    "gemma2": _case(
        "gemma2", "Gemma2", FOUR, TIED,
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
        is_shifted=True, embedding=0.15,
    ),
    "mistral3": _case(
        "mistral3", "Ministral3", LAYERS,
        {"head_dim": 32, "sliding_window": None, "rope_parameters": MINISTRAL_ROPE},
    ),
    "cohere2": _case(
        "cohere2", "Cohere2", FOUR, TIED, {"sliding_window": 8, "logit_scale": 0.25,
                                           "eos_token_id": 511, "bos_token_id": 510},
        hub=_cohere, embedding=0.7,
    ),
    "hunyuan-dense": _case(
        "hunyuan-dense", "HunYuanDenseV1", LAYERS, {"head_dim": 16, "eos_token_id": 511},
    ),
    "hunyuan-moe": _case(
        "hunyuan-moe", "HunYuanMoEV1", LAYERS,
        {"head_dim": 16, "num_experts": 4, "moe_topk": [2, 2], "moe_intermediate_size": [32, 32],
         "num_shared_expert": [1, 1], "eos_token_id": 511},
    ),
    "ernie4_5": _case("ernie4_5", "Ernie4_5", LAYERS, {"head_dim": 32, "eos_token_id": 511}),
    "ernie4_5-moe": _case(
        "ernie4_5-moe", "Ernie4_5_Moe", FOUR,
        {"head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 24, "moe_k": 2,
         "moe_num_experts": 4, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
         "moe_layer_end_index": 3, "eos_token_id": 511},
    ),
    "bailingmoe2": _case(
        "bailingmoe2", "Glm4Moe", LAYERS,
        {"head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2, "use_qk_norm": True,
         "attention_bias": False, "first_k_dense_replace": 1, "norm_topk_prob": True,
         "routed_scaling_factor": 2.5},
        stored=_bailing, tensors=_bailing_names,
    ),
    "llama4": _case(
        "llama4", "Llama4", LLAMA4, {"interleave_moe_layer_step": 2}, hf_text=True,
        hub=_llama4, tensors=_llama4_names,
    ),
    "llama4-chunks": _case(
        "llama4", "Llama4", LLAMA4,
        {"num_experts_per_tok": 2, "attention_chunk_size": 12, "floor_scale": 10,
         "attn_scale": 0.4},
        hf_text=True,
    ),
    "qwen2vl": HubCase(
        "qwen2vl", hf_class="Qwen2VLForConditionalGeneration", hf_config="Qwen2VLConfig",
        settings={"text_config": COMMON | LAYERS | {"rope_parameters": SECTIONS | {
            "mrope_section": [2, 3, 3]}}, "vision_config": EYES},
    ),
    "qwen3vl": HubCase(
        "qwen3vl", hf_class="Qwen3VLForConditionalGeneration", hf_config="Qwen3VLConfig",
        settings={"text_config": COMMON | LAYERS | {"head_dim": 16, "rope_parameters": SECTIONS},
                  "vision_config": EYES},
    ),
    "qwen3vlmoe": HubCase(
        "qwen3vlmoe", hf_class="Qwen3VLMoeForConditionalGeneration",
        hf_config="Qwen3VLMoeConfig",
        settings={"text_config": COMMON | LAYERS | EXPERTS
                  | {"head_dim": 16, "rope_parameters": SECTIONS, "decoder_sparse_step": 1},
                  "vision_config": EYES},
        tensors=_turn_experts,
    ),
    **STATE_CASES,
}  # fmt: skip
