"""Checkpoints of families with Mamba-2 layers or short convolutions."""

from __future__ import annotations

import torch

from .hub_case import Config, HubCase, Tensors

WITH_CONVERTED_HEAD = ("nemotron_h_moe-mtp",)  # an MTP head comes with the checkpoint
# llama.cpp has the norms' epsilon for lengths and latents, the checkpoint's class another one.
OTHER_EPSILON = {"kimi-linear": 1e-2}

FOUR: Config = {"num_hidden_layers": 4}
CONVOLUTIONS: Config = FOUR | {
    "layer_types": ["conv", "full_attention", "conv", "full_attention"], "conv_L_cache": 3,
    "norm_eps": 1e-5, "eos_token_id": 511, "tie_word_embeddings": True,
}  # fmt: skip
MAMBA: Config = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16,
    "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8, "eos_token_id": 511,
}  # fmt: skip
GRANITE: Config = MAMBA | FOUR | {
    "layer_types": ["mamba", "attention", "mamba", "attention"], "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 0.7,
    "shared_intermediate_size": 128, "num_local_experts": 0, "num_experts_per_tok": 0,
}  # fmt: skip
FALCON: Config = MAMBA | {
    "num_hidden_layers": 2, "head_dim": 16, "mamba_d_ssm": 128, "mamba_norm_before_gate": False,
    "mamba_rms_norm": True, "mamba_n_groups": 2, "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.7, "key_multiplier": 0.6, "ssm_in_multiplier": 0.9,
    "ssm_out_multiplier": 0.5, "mlp_multipliers": [0.7, 0.4], "embedding_multiplier": 2.0,
    "ssm_multipliers": [0.9, 0.8, 0.7, 0.6, 1.1], "lm_head_multiplier": 0.5,
}  # fmt: skip
MIXERS: Config = {
    "head_dim": 16, "n_groups": 1, "state_size": 16, "conv_kernel": 4, "chunk_size": 8,
    "eos_token_id": 511, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
NEMOTRON: Config = {
    "hybrid_override_pattern": "M-M*", "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
    "ssm_state_size": 16, "conv_kernel": 4, "head_dim": 16, "chunk_size": 8, "eos_token_id": 511,
    "layer_norm_epsilon": 1e-5,
}  # fmt: skip
NEMOTRON_MOE: Config = NEMOTRON | {
    "hybrid_override_pattern": "ME*E", "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
    "routed_scaling_factor": 1.5,
}  # fmt: skip


def _own_epsilon(config: Config) -> None:
    del config["rms_norm_eps"]  # of all toys, beside that of the class


def _bamba(config: Config) -> None:
    config["attn_rotary_emb"] = 8


def _granite(config: Config) -> None:
    """The older words, which llama.cpp's converter looks for."""
    words = {"linear_attention": "mamba", "full_attention": "attention"}
    config["layer_types"] = [words.get(kind, kind) for kind in config["layer_types"]]


def _dense_nemotron(config: Config) -> None:
    """The letters of the hub, and nothing of the experts that it has not."""
    of_experts = ("expert", "moe", "n_group", "topk_group", "layers_block_type", "mtp_")
    for name in [name for name in config if any(part in name for part in of_experts)]:
        if name != "n_groups":
            del config[name]
    config |= {"hybrid_override_pattern": "M-M*", "num_hidden_layers": 4}
    _own_epsilon(config)


def _nemotron_moe(config: Config) -> None:
    del config["layers_block_type"]
    config |= {"hybrid_override_pattern": "ME*E", "num_hidden_layers": 4}
    _own_epsilon(config)


def _nemotron_head(config: Config) -> None:
    _nemotron_moe(config)
    config |= {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}


def _add_nemotron_head(tensors: Tensors) -> None:
    """`transformers` has none: copies of the trunk's layers, and what is around them."""
    for n, layer in enumerate((2, 1)):
        before = f"backbone.layers.{layer}."
        for name in [name for name in tensors if name.startswith(before)]:
            copy = tensors[name].flip(0).contiguous()
            tensors[f"mtp.layers.{n}.{name.removeprefix(before)}"] = copy
    made = torch.Generator().manual_seed(3)
    for name in ("0.enorm", "0.hnorm", "1.final_layernorm"):
        tensors[f"mtp.layers.{name}.weight"] = 1 + 0.2 * torch.randn(64, generator=made)
    tensors["mtp.layers.0.eh_proj.weight"] = torch.randn(64, 128, generator=made) / 11


KIMI: Config = FOUR | {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "linear_head_dim": 16,
    "linear_num_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4,
    "moe_intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 510, "eos_token_id": 511,
}  # fmt: skip


def _kimi(config: Config) -> None:
    """The hub's words."""
    for name in ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads"):
        del config[name]
    config |= {
        "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 16,
                               "num_heads": 4, "short_conv_kernel_size": 4},
        "first_k_dense_replace": 1, "moe_router_activation_func": "sigmoid",
        "moe_layer_freq": 1, "use_grouped_topk": True,
    }  # fmt: skip


def _dense_layer(tensors: Tensors) -> None:
    """`transformers` saves it under the name of mixtures."""
    for kind in ("gate", "up", "down"):
        name = f"model.layers.0.{{}}.{kind}_proj.weight"
        tensors[name.format("mlp")] = tensors.pop(name.format("block_sparse_moe"))


STATE_CASES: dict[str, HubCase] = {
    "lfm2": HubCase(
        "lfm2", hf_class="Lfm2ForCausalLM", hf_config="Lfm2Config",
        settings=CONVOLUTIONS | {"block_auto_adjust_ff_dim": False}, stored=_own_epsilon,
        embedding=0.15,
    ),
    "lfm2moe": HubCase(
        "lfm2moe", hf_class="Lfm2MoeForCausalLM", hf_config="Lfm2MoeConfig",
        settings=CONVOLUTIONS | {"num_experts": 4, "num_experts_per_tok": 2, "num_dense_layers": 2,
                                 "moe_intermediate_size": 32},
        stored=_own_epsilon, embedding=0.15,
    ),
    "granitehybrid": HubCase(
        "granitehybrid", hf_class="GraniteMoeHybridForCausalLM",
        hf_config="GraniteMoeHybridConfig", settings=GRANITE, stored=_granite,
    ),
    "granitehybrid-moe": HubCase(
        "granitehybrid", hf_class="GraniteMoeHybridForCausalLM",
        hf_config="GraniteMoeHybridConfig", stored=_granite,
        settings=GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2,
                            "intermediate_size": 32, "shared_intermediate_size": 48},
    ),
    "bamba": HubCase(
        "granitehybrid", hf_class="BambaForCausalLM", hf_config="BambaConfig",
        settings=MAMBA | {"num_hidden_layers": 2, "attn_layer_indices": [1]}, stored=_bamba,
    ),
    "falcon-h1": HubCase(
        "falcon-h1", hf_class="FalconH1ForCausalLM", hf_config="FalconH1Config", settings=FALCON,
    ),
    "falcon-h1-plain": HubCase(
        "falcon-h1", hf_class="FalconH1ForCausalLM", hf_config="FalconH1Config",
        settings=FALCON | {"mamba_rms_norm": False},
    ),
    "kimi-linear": HubCase(
        "kimi-linear", hf_class="KimiLinearForCausalLM", hf_config="KimiLinearConfig",
        settings=KIMI, hub=_kimi, tensors=_dense_layer,
    ),
    "mamba2": HubCase(
        "mamba2", hf_class="Mamba2ForCausalLM", hf_config="Mamba2Config",
        settings=MIXERS | {"num_hidden_layers": 2, "num_heads": 8, "expand": 2},
        stored=_own_epsilon,
    ),
    "nemotron_h": HubCase(
        "nemotron_h", hf_class="NemotronHForCausalLM", hf_config="NemotronHConfig",
        settings=NEMOTRON, stored=_dense_nemotron,
    ),
    "nemotron_h_moe": HubCase(
        "nemotron_h_moe", hf_class="NemotronHForCausalLM", hf_config="NemotronHConfig",
        settings=NEMOTRON_MOE, stored=_nemotron_moe,
    ),
    "nemotron_h_moe-mtp": HubCase(
        "nemotron_h_moe", hf_class="NemotronHForCausalLM", hf_config="NemotronHConfig",
        settings=NEMOTRON_MOE, stored=_nemotron_head, tensors=_add_nemotron_head,
    ),
    "nemotron_h_moe-latents": HubCase(
        "nemotron_h_moe", hf_class="NemotronHForCausalLM", hf_config="NemotronHConfig",
        settings=NEMOTRON_MOE | {"moe_latent_size": 32}, stored=_nemotron_moe,
    ),
}  # fmt: skip
