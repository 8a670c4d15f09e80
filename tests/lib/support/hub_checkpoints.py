"""Tiny random checkpoints of families with MTP heads, windows or latent attention, as the hub has
them: tensors under its names, and config.json with its keys (or those of `transformers`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .checkpoints import write_tokenizer
from .hub_case import Config, HubCase, Tensors, fuse_qkv
from .plain_hub_cases import PLAIN_CASES
from .tiny_heads import KINDS, MLA, MOE, ROPE, build_head, randomise_tensors
from .tiny_models import COMMON, OSS_ROPE

YARN = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 0.707,
    "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
}
GEMMA: Config = {
    "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8, "tie_word_embeddings": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
GEMMA4: Config = GEMMA | {
    "global_head_dim": 32, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 512,
    "final_logit_softcapping": 30.0, "rope_parameters": GEMMA_ROPES | {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                           "rope_theta": 1e6}},
}  # fmt: skip


GPT_OSS: Config = {
    "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 32, "sliding_window": 8,
    "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": OSS_ROPE,
    "rms_norm_eps": 1e-5,
}  # fmt: skip


def _without(config: Config, *names: str) -> None:
    for name in names:
        config.pop(name, None)


def _glm(config: Config) -> None:
    _without(config, "rope_parameters")
    config |= {"rope_theta": 1e4, "rope_scaling": None, "partial_rotary_factor": 0.5}


def _deepseek(config: Config) -> None:
    _without(config, "rope_parameters", "head_dim")
    config |= {"rope_theta": 1e4, "rope_scaling": dict(YARN)}
    config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def _deepseek_v2(config: Config) -> None:
    _deepseek(config)
    config |= {"scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": False}


def _glm_lite(config: Config) -> None:
    _without(config, "rope_parameters", "mlp_layer_types", "mtp_mlp_layer_types", "num_mtp_layers")
    config |= {"rope_theta": 1e4, "rope_scaling": None, "num_nextn_predict_layers": 1}
    config |= {"first_k_dense_replace": 1, "topk_method": "noaux_tc", "partial_rotary_factor": 1.0}


def _mimo(config: Config) -> None:
    names = ("rope_parameters", "layer_types", "mlp_layer_types", "mtp_layer_types")
    _without(config, *names, "mtp_mlp_layer_types", "num_mtp_layers", "rms_norm_eps", "n_group")
    _without(config, "topk_group")
    config |= {
        "hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1], "rope_theta": 5000000,
        "swa_rope_theta": 10000, "partial_rotary_factor": 0.334, "layernorm_epsilon": 1e-6,
        "swa_num_key_value_heads": 2, "swa_num_attention_heads": 4, "swa_head_dim": 24,
        "swa_v_head_dim": 16, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "n_group": 1, "topk_group": 1, "sliding_window_size": 8, "routed_scaling_factor": None,
    }  # fmt: skip


def _step(config: Config) -> None:
    text = config["text_config"]
    names = ("rope_parameters", "mlp_layer_types", "mtp_layer_types", "mtp_mlp_layer_types")
    _without(text, *names, "per_layer_config", "num_sliding_attention_heads", "n_routed_experts")
    _without(text, "num_experts_per_tok", "num_key_value_heads", "query_pre_attn_scalar")
    kinds = text["layer_types"]
    is_windowed = [kind == "sliding_attention" for kind in kinds]
    text |= {
        "rope_theta": [1e4 if w else 5e6 for w in is_windowed],
        "partial_rotary_factors": [1.0 if w else 0.5 for w in is_windowed],
        "rope_scaling": dict(LLAMA3), "num_attention_groups": 2, "moe_num_experts": 4,
        "moe_top_k": 2, "moe_layers_enum": "1,2", "moe_every_n_layer": 1,
        "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2,
                                    "head_dim": 16},
        "moe_router_activation": "sigmoid", "norm_expert_weight": True,
        "swiglu_limits_shared": [None, None, 16.0, None, None],
    }  # fmt: skip


def _exaone(config: Config) -> None:
    names = ("mlp_layer_types", "mtp_layer_types", "mtp_mlp_layer_types", "num_mtp_layers")
    _without(config, "rope_parameters", *names)
    config |= {"rope_theta": 1000000, "rope_scaling": dict(LLAMA3), "scoring_func": "sigmoid"}
    config |= {"num_nextn_predict_layers": 1, "sliding_window_pattern": "LLLG"}


def _gemma3(config: Config) -> None:
    _without(config, "rope_parameters", "layer_types", "_sliding_window_pattern")
    config |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    config["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}


def _gemma4(config: Config) -> None:
    full = config.pop("per_layer_config", {}).get("1", {})
    config["global_head_dim"] = full["head_dim"]
    config["num_global_key_value_heads"] = full.get("num_key_value_heads")


def _oss(config: Config) -> None:
    _without(config, "swiglu_alpha")
    config["rope_scaling"] = config.pop("rope_parameters")
    config["rope_theta"] = config["rope_scaling"].pop("rope_theta")


def pack_experts(tensors: Tensors) -> None:
    """MXFP4 of any codes: see `unpack_experts`."""
    made = torch.Generator().manual_seed(9)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        n, n_in, n_out = tensors.pop(name).shape
        shape = (n, n_out, n_in // 32)
        codes = torch.randint(0, 256, (*shape, 16), generator=made)
        tensors[f"{name}_blocks"] = codes.to(torch.uint8)
        powers = torch.randint(121, 124, shape, generator=made)
        tensors[f"{name}_scales"] = powers.to(torch.uint8)


def unpack_experts(tensors: Tensors) -> Tensors:
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([magnitudes, -magnitudes])
    out = {}
    for name in [name for name in tensors if name.endswith("_blocks")]:
        stem = name.removesuffix("_blocks")
        codes, powers = tensors[name].int(), tensors[f"{stem}_scales"].float() - 127
        pairs = torch.stack([values[codes % 16], values[codes // 16]], dim=-1)
        rows = pairs.flatten(-2) * torch.exp2(powers)[..., None]
        out[stem] = rows.flatten(-2).transpose(1, 2)
    return out


DEEPSEEK_V2: Config = {
    **MOE, **MLA, "q_lora_rank": None, "n_routed_experts": 4, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "rope_parameters": ROPE, "topk_method": "greedy",
    "n_group": 1, "topk_group": 1,
}  # fmt: skip


def _gemma4_case(**settings: Any) -> HubCase:
    return HubCase(
        "gemma4", hf_class="Gemma4ForCausalLM", hf_config="Gemma4TextConfig",
        settings=GEMMA4 | settings, hub=_gemma4,
    )  # fmt: skip


CASES: dict[str, HubCase] = {
    "glm4moe": HubCase("glm4moe", "glm4moe", hub=_glm),
    "deepseek-v3": HubCase("deepseek2", "deepseek2", hub=_deepseek),
    "deepseek-v2": HubCase(
        "deepseek2", hf_class="DeepseekV2ForCausalLM", hf_config="DeepseekV2Config",
        settings=DEEPSEEK_V2, hub=_deepseek_v2,
    ),
    "glm4-lite": HubCase("deepseek2", "glm4-lite", hub=_glm_lite),
    "mimo2": HubCase("mimo2", "mimo2", hub=_mimo),
    "mimo2-fused": HubCase("mimo2", "mimo2", hub=_mimo, tensors=fuse_qkv),
    "step35": HubCase("step35", "step35", hub=_step),
    "exaone-moe": HubCase("exaone-moe", "exaone-moe", hub=_exaone),
    "gpt-oss": HubCase(
        "gpt-oss", hf_class="GptOssForCausalLM", hf_config="GptOssConfig", settings=GPT_OSS,
        hub=_oss,
    ),
    "gpt-oss-mxfp4": HubCase(
        "gpt-oss", hf_class="GptOssForCausalLM", hf_config="GptOssConfig", settings=GPT_OSS,
        hub=_oss, tensors=pack_experts, weights=unpack_experts,
    ),
    "gemma3": HubCase(
        "gemma3", hf_class="Gemma3ForCausalLM", hf_config="Gemma3TextConfig",
        settings=GEMMA | {"num_hidden_layers": 7, "layer_types": None,
                          "rope_parameters": GEMMA_ROPES, "query_pre_attn_scalar": 16},
        is_shifted=True, hub=_gemma3,
    ),
    "gemma4": _gemma4_case(),
    "gemma4-moe": _gemma4_case(
        enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32
    ),
    "gemma4-shared": _gemma4_case(
        hidden_size_per_layer_input=8, num_kv_shared_layers=2, use_double_wide_mlp=True
    ),
    "gemma4-k-is-v": _gemma4_case(attention_k_eq_v=True, num_global_key_value_heads=1),
    **PLAIN_CASES,
}  # fmt: skip


@dataclass
class HubCheckpoint:
    case: HubCase
    folder: Path
    hf: Any
    mtp: Any = None


def build_hub_checkpoint(
    name: str, folder: Path, *, as_saved: bool = False, **settings: Any
) -> HubCheckpoint:
    """`as_saved`: config.json as `transformers` saves it."""
    case = CASES[name]
    if case.head:
        made = build_head(case.head, folder)
        found = HubCheckpoint(case, made.checkpoint, made.hf, made.mtp)
    else:
        found = HubCheckpoint(case, folder / f"{name}-hub", _build(case, settings))
        found.hf.save_pretrained(found.folder)
    if case.tensors is not None:
        edited = _edit_tensors(found.folder, case.tensors)
        if case.weights is not None:
            found.hf.load_state_dict(case.weights(edited), strict=False)
    for change in (case.stored, None if as_saved else case.hub):
        if change is not None:
            path = found.folder / "config.json"
            config = json.loads(path.read_text())
            change(config)
            path.write_text(json.dumps(config))
    write_tokenizer(found.folder)
    return found


def _build(case: HubCase, settings: Config) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = getattr(transformers, case.hf_config)(**COMMON | case.settings | settings)
    config._attn_implementation = "eager"
    hf = getattr(transformers, case.hf_class)(config).eval().float()
    randomise_tensors(hf, is_shifted=case.is_shifted)
    with torch.no_grad():
        hf.get_input_embeddings().weight.mul_(case.embedding)
    return hf


def _edit_tensors(folder: Path, edit: Callable[[Tensors], None]) -> Tensors:
    """All in one file, without an index."""
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    return tensors


assert {case.head for case in CASES.values() if case.head} <= set(KINDS)
