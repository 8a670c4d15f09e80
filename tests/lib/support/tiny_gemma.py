"""Tiny random Gemma models: names and keys of GGUF files are written down here a second time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .hf_tensors import Tensors
from .tiny_models import COMMON, TinyModel, write

LAYERS = {"num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8}
GEMMA4 = {
    **LAYERS,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "tie_word_embeddings": True,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "final_logit_softcapping": 3.0,
}
EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}


@dataclass(frozen=True)
class GemmaKind:
    architecture: str
    settings: dict[str, Any]
    keys: dict[str, Any] = field(default_factory=dict)


GEMMAS = {
    "gemma3": GemmaKind(
        "gemma3",
        {**LAYERS, "num_hidden_layers": 7, "query_pre_attn_scalar": 16}
        | {"tie_word_embeddings": True},
    ),
    "gemma4": GemmaKind("gemma4", GEMMA4),
    "gemma4-moe": GemmaKind(
        "gemma4",
        {**GEMMA4, **EXPERTS},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
    "gemma4-inputs": GemmaKind(
        "gemma4",
        {**GEMMA4, "num_hidden_layers": 6, "num_kv_shared_layers": 2}
        | {"layer_types": ["sliding_attention", "full_attention"] * 3}
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 512},
        {"embedding_length_per_layer_input": 8, "attention.shared_kv_layers": 2},
    ),
    "gemma4-keys": GemmaKind(
        "gemma4",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {"attention.head_count_kv": [2, 1, 2, 1]},
    ),
}
NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    **{f"self_attn.{k}_proj.weight": f"attn_{k}.weight" for k in "qkv"},
    **{f"mlp.{k}_proj.weight": f"ffn_{k}.weight" for k in ("gate", "up", "down")},
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
}
GLOBAL = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}


def build_gemma(name: str, folder: Path, *, seed: int = 0, quantise: str = "F32") -> TinyModel:
    import transformers

    kind = GEMMAS[name]
    number = kind.architecture.removeprefix("gemma")
    config = getattr(transformers, f"Gemma{number}TextConfig")(**COMMON | kind.settings)
    config._attn_implementation = "eager"
    config.allow_global_per_layer_attribute_access = True  # the values of most layers
    torch.manual_seed(seed)
    hf = getattr(transformers, f"Gemma{number}ForCausalLM")(config).eval().float()
    _randomise(hf, is_shifted=number == "3")
    path = folder / f"{name}-{quantise}.gguf"
    write(path, kind.architecture, _keys(kind, config), _tensors(hf, kind, config), quantise)
    return TinyModel(kind, hf, None, path)


def _randomise(hf: Any, *, is_shifted: bool) -> None:
    with torch.no_grad():
        for name, value in [*hf.named_parameters(), *hf.named_buffers()]:
            if "inv_freq" in name or name.endswith("embed_scale"):
                continue
            if "norm" in name and value.ndim == 1:
                value.normal_(0.0 if is_shifted else 1.0, 0.2)
            elif name.endswith(("layer_scalar", "scale")):
                value.normal_(1.0, 0.1)
            elif "embed_tokens" in name:
                value.normal_(0.0, 0.15)
            else:
                value.normal_(0.0, value.shape[-1] ** -0.5)


def _tensors(hf: Any, kind: GemmaKind, config: Any) -> Tensors:
    out: Tensors = {}
    for full, value in hf.state_dict().items():
        name = full.removeprefix("model.")
        array = value.detach().float().numpy()
        if kind.architecture == "gemma3" and "norm" in name:
            array = array + 1
        if name in GLOBAL:
            out[GLOBAL[name]] = array
        elif name.startswith("layers."):
            _, block, inner = name.split(".", 2)
            out[f"blk.{block}.{NAMES[inner]}"] = array
        else:
            assert name == "lm_head.weight", name  # tied
    if kind.architecture == "gemma4":
        n = kind.settings["global_head_dim"] // 2
        turning = int(config.rope_parameters["full_attention"]["partial_rotary_factor"] * n)
        factors = np.where(np.arange(n) < turning, 1.0, 1e30)
        out["rope_freqs.weight"] = factors.astype(np.float32)
    return {name: np.ascontiguousarray(array, np.float32) for name, array in out.items()}


def _keys(kind: GemmaKind, config: Any) -> dict[str, Any]:
    narrow = kind.settings["head_dim"]
    wide = kind.settings.get("global_head_dim", narrow)
    ropes = config.rope_parameters
    keys: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
    }
    if kind.architecture == "gemma4":
        keys |= {
            "attention.key_length_swa": narrow,
            "attention.value_length_swa": narrow,
            "rope.dimension_count": wide,
            "rope.dimension_count_swa": narrow,
            "attention.sliding_window_pattern": [
                layer == "sliding_attention" for layer in config.layer_types
            ],
            "embedding_length_per_layer_input": 0,
            "attention.shared_kv_layers": 0,
            "final_logit_softcapping": config.final_logit_softcapping,
        }
    return {f"{kind.architecture}.{key}": value for key, value in (keys | kind.keys).items()}
