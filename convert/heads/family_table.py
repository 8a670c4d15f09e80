"""Architectures with an MTP head: attach and inspect know each by one row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from . import family_layouts as at
from .mtp_family import MtpFamily, Need, Stems

# Names in checkpoints ----------------------------------------------------------------------------

MLA: Final = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}
# MLA with sparse attention: heads are run without the indexer, and carry it all the same.
_SPARSE_MLA: Final = MLA | {
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
}
_QWEN: Final = {
    "post_attention_layernorm": "post_attention_norm",  # which is the norm before the FFN here
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_BAILING: Final = {
    "attention.query_key_value": "attn_qkv",
    "attention.q_proj": "attn_q",
    "attention.dense": "attn_output",
    "attention.o_proj": "attn_output",
    "attention.query_layernorm": "attn_q_norm",
    "attention.key_layernorm": "attn_k_norm",
    "attention.g_proj": "attn_gate",
    "final_layernorm": "layer_output_norm",
}
_BAILING_BIAS: Final = {
    "mlp.gate.expert_bias": "exp_probs_b.bias",
    "mlp.gate.expert_bias.bias": "exp_probs_b.bias",
}
# Of DeepSeek V4's hyper-connections: weights that mix its streams before attention and experts.
_MIXERS: Final = tuple(
    f"hc_{place}_{part}" for place in ("attn", "ffn") for part in ("fn", "base", "scale")
)

# Tensors of a block in GGUF ----------------------------------------------------------------------


def _all(*stems: str) -> Need:
    return (stems,)


def _moe(shared: Stems = (), *, dense: bool = False) -> Need:
    return tuple(stack + shared for stack in _STACKS) + ((_DENSE,) if dense else ())


_DENSE: Final[Stems] = ("ffn_gate", "ffn_up", "ffn_down")
_STACKS: Final = (
    ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    ("ffn_gate_inp", "ffn_gate_up_exps", "ffn_down_exps"),
)
_SHARED: Final[Stems] = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
_GATED_SHARED: Final[Stems] = ("ffn_gate_inp_shexp", *_SHARED)
_OUT: Final = _all("attn_output")
_GQA: Final = ((("attn_q", "attn_k", "attn_v"), ("attn_qkv",)), _OUT)
_HEAD_NORMS: Final = _all("attn_q_norm", "attn_k_norm")
_PRE_NORM: Final = _all("attn_norm", "ffn_norm")
_POST_NORM: Final = _all("attn_norm", "post_attention_norm")
_MLA_BLOCK: Final = (
    (("attn_q_a", "attn_q_a_norm", "attn_q_b"), ("attn_q",)),
    _all("attn_kv_a_mqa", "attn_kv_a_norm"),
    (("attn_k_b", "attn_v_b"), ("attn_kv_b",)),
    _OUT,
)
_DEEPSEEK_BLOCK: Final = (_PRE_NORM, *_MLA_BLOCK, _moe(_SHARED, dense=True))


def _qwen(architecture: str, ffn: Need, *model_types: str) -> MtpFamily:
    """One gated-attention block under `mtp.`. The tiling of value heads concerns recurrent layers
    only, so nothing here is reordered."""
    return MtpFamily(
        architecture,
        model_types,
        at.with_shared_parts,
        block=(_POST_NORM, *_GQA, _HEAD_NORMS, ffn),
        stems=_QWEN,
        shifted_norms=True,
        layer_keys=at.in_each_head("attention.recurrent_layers", False),
        always_has_head=True,
        bare_key_loads=False,
    )


def _deepseek(architecture: str, stems: Mapping[str, str], *model_types: str) -> MtpFamily:
    return MtpFamily(
        architecture, model_types, at.behind_the_trunk, block=_DEEPSEEK_BLOCK, stems=stems
    )


_ROWS: Final = (
    _qwen("qwen3next", _moe(_GATED_SHARED, dense=True), "qwen3_next"),
    _qwen("qwen35", (_DENSE,), "qwen3_5", "qwen3_5_text"),
    _qwen("qwen35moe", _moe(_GATED_SHARED), "qwen3_5_moe", "qwen3_5_moe_text"),
    MtpFamily(
        "glm4moe",
        ("glm4_moe", "glm4v_moe", "glm4v_moe_text"),
        at.behind_the_trunk,
        block=(_POST_NORM, *_GQA, _moe(_SHARED, dense=True)),
        stems={"post_attention_layernorm": "post_attention_norm"},  # the norm before the FFN
        always_has_head=True,
    ),
    MtpFamily(
        "glm4",
        ("glm4", "glm_ocr", "glm_ocr_text"),
        at.behind_the_trunk,
        block=(_PRE_NORM, *_GQA),
        stems={
            "post_attention_layernorm": "ffn_norm",
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
            "mlp.gate_up_proj": "ffn_up",
        },
        most_heads=8,
        in_llama_cpp=False,
    ),
    MtpFamily(
        "glm5-next",
        ("glm5_next", "glm5_next_text"),
        at.behind_the_trunk,
        block=_DEEPSEEK_BLOCK,
        stems=_SPARSE_MLA,
        whole={
            "self_attn.indexer.index_kpool_compress_ape": "indexer_compressor_ape.weight",
            "self_attn.indexer.index_kpool_compress_gate": "indexer_compressor_gate.weight",
        },
        # One key-value head, where layers with a recurrent state have none.
        layer_keys=at.in_each_head("attention.head_count_kv", 1, has_clamps=True),
    ),
    # llama.cpp's converter drops the head of V3; the files it belongs to can run it all the same.
    _deepseek(
        "deepseek2", MLA, "deepseek_v3", "deepseek_v2", "kimi_k2", "kimi_k25", "glm4_moe_lite"
    ),
    _deepseek("deepseek32", _SPARSE_MLA, "deepseek_v32"),
    _deepseek("glm-dsa", _SPARSE_MLA, "glm_moe_dsa"),
    MtpFamily(
        "deepseek4",
        ("deepseek_v4",),
        at.deepseek4_blocks,
        stems={
            "e_proj": "nextn.e_proj",  # these two become `nextn.eh_proj`
            "h_proj": "nextn.h_proj",
            "norm": "nextn.shared_head_norm",
            "attn_norm": "attn_norm",
            "attn.wq_a": "attn_q_a",
            "attn.q_norm": "attn_q_a_norm",
            "attn.wq_b": "attn_q_b",
            "attn.wkv": "attn_kv",
            "attn.kv_norm": "attn_kv_a_norm",
            "attn.wo_a": "attn_output_a",
            "attn.wo_b": "attn_output_b",
            "ffn_norm": "ffn_norm",
            "ffn.gate": "ffn_gate_inp",
            "ffn.shared_experts.w1": "ffn_gate_shexp",
            "ffn.shared_experts.w2": "ffn_down_shexp",
            "ffn.shared_experts.w3": "ffn_up_shexp",
        },
        whole={
            "attn.attn_sink": "attn_sinks.weight",
            "ffn.gate.bias": "exp_probs_b.bias",
            **{name: f"{name}.weight" for name in _MIXERS},
        },
        needs=tuple(f"{name}.weight" for name in _MIXERS),
        # They mix the streams down to one row. GGUF has no name for them in a head, llama.cpp takes
        # those of the model, and refuses a file that has tensors which it does not know.
        left_out=("hc_head_fn", "hc_head_base", "hc_head_scale"),
        layer_keys=at.in_each_head("attention.compress_ratios", 0, has_clamps=True),
    ),
    MtpFamily(
        "dots3note",
        ("dots3_note", "dots3_note_text"),
        at.dots_blocks,
        stems={
            **_SPARSE_MLA,
            "self_attn.k_rope_only_layernorm": "attn_k_norm",
            "self_attn.g_proj": "attn_gate",
        },
        factors=at.dots_factors,
        sizes="swa_",
        layer_keys=at.dots_keys,
        most_heads=8,
        in_llama_cpp=False,
    ),
    MtpFamily(
        "mimo2",
        ("mimo_v2_flash", "mimo_v2"),
        at.of_their_own,
        block=(_PRE_NORM, *_GQA, (_DENSE,), _all("layer_output_norm")),
        stems={
            "pre_mlp_layernorm": "ffn_norm",
            "final_layernorm": "layer_output_norm",
        },
        whole={
            "self_attn.attention_sink_bias": "attn_sinks.weight",
            "self_attn.sinks": "attn_sinks.weight",
        },
        fuses_qkv=True,
        layer_keys=at.in_each_head("attention.sliding_window_pattern", True),
        always_has_head=True,
        most_heads=3,
    ),
    MtpFamily(
        "step35",
        ("step3p5", "step3p7", "step3p7_text", "step3_5"),
        at.step_blocks,
        block=(_PRE_NORM, *_GQA, _HEAD_NORMS, _all("attn_gate"), (_DENSE,)),
        stems={
            "shared_head.output": "nextn.shared_head_head",
            "self_attn.g_proj": "attn_gate",
            "moe.gate": "ffn_gate_inp",
            "moe.gate_proj": "ffn_gate_exps",
            "moe.up_proj": "ffn_up_exps",
            "moe.down_proj": "ffn_down_exps",
            "share_expert.gate_proj": "ffn_gate_shexp",
            "share_expert.up_proj": "ffn_up_shexp",
            "share_expert.down_proj": "ffn_down_shexp",
        },
        whole={"moe.router_bias": "exp_probs_b.bias"},
        shifted_norms=True,
        layer_keys=at.step_keys,
        always_has_head=True,
        most_heads=3,
    ),
    MtpFamily(
        "exaone-moe",
        ("exaone_moe",),
        at.with_shared_parts,
        block=(_PRE_NORM, *_GQA, _HEAD_NORMS, _moe(dense=True)),
        layer_keys=at.exaone_keys,
        always_has_head=True,
        most_heads=8,
        in_llama_cpp=False,
    ),
    MtpFamily(
        "exaone4",
        ("exaone4", "exaone4_5", "exaone4_5_text"),
        at.with_shared_parts,
        block=(_all("post_attention_norm", "post_ffw_norm"), *_GQA, _HEAD_NORMS, (_DENSE,)),
        stems={
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
        layer_keys=at.exaone_keys,
        most_heads=8,
        in_llama_cpp=False,
    ),
    MtpFamily(
        "hy_v3",
        ("hy_v3", "hunyuan_v3_moe"),
        at.behind_the_trunk,
        block=(_PRE_NORM, *_GQA, _HEAD_NORMS, _moe(_SHARED, dense=True)),
        stems={
            "final_layernorm": "nextn.shared_head_norm",
            "self_attn.query_layernorm": "attn_q_norm",
            "self_attn.key_layernorm": "attn_k_norm",
            "mlp.router.gate": "ffn_gate_inp",
            "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
            "mlp.shared_mlp.up_proj": "ffn_up_shexp",
            "mlp.shared_mlp.down_proj": "ffn_down_shexp",
        },
        whole={"mlp.expert_bias": "exp_probs_b"},  # without an ending, in this family alone
    ),
    MtpFamily(
        "cohere2moe",
        ("cohere2_moe",),
        at.behind_the_trunk,
        block=(_all("attn_norm"), *_GQA, _moe(dense=True)),
        layer_keys=at.in_each_head("attention.sliding_window_pattern", False),
    ),
    MtpFamily(
        "bailingmoe2",
        ("bailing_moe_v2", "bailing_moe"),
        at.behind_the_trunk,
        block=(_PRE_NORM, *_GQA, _moe(dense=True)),
        stems=_BAILING,
        whole=_BAILING_BIAS,
        most_heads=8,
        in_llama_cpp=False,
    ),
    MtpFamily(
        "bailingmoe3",
        ("bailing_hybrid", "bailing_moe_v3"),
        at.behind_the_trunk,
        block=(_all("attn_norm", "ffn_norm", "layer_output_norm"), *_MLA_BLOCK, _moe()),
        stems=_BAILING
        | {name.replace("self_attn.", "attention."): stem for name, stem in MLA.items()},
        whole=_BAILING_BIAS,
    ),
    MtpFamily(
        "nemotron_h_moe",
        ("nemotron_h",),
        at.nemotron_block,
        block=(
            _all("attn_norm", "post_attention_norm", "nextn.shared_head_norm"),
            *_GQA,
            _all("ffn_gate_inp", "ffn_up_exps", "ffn_down_exps"),
        ),
        stems={
            "norm": "attn_norm",
            "mixer.q_proj": "attn_q",
            "mixer.k_proj": "attn_k",
            "mixer.v_proj": "attn_v",
            "mixer.o_proj": "attn_output",
            "mixer.gate": "ffn_gate_inp",
            "mixer.shared_experts.up_proj": "ffn_up_shexp",
            "mixer.shared_experts.down_proj": "ffn_down_shexp",
            "mixer.fc1_latent_proj": "ffn_latent_down",
            "mixer.fc2_latent_proj": "ffn_latent_up",
            "post_attention_norm": "post_attention_norm",
            "final_layernorm": "nextn.shared_head_norm",
        },
        whole={
            "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
            "mixer.gate.e_score_correction.bias": "exp_probs_b.bias",
        },
        bare_key_loads=False,
    ),
)
FAMILIES: Final = MappingProxyType({family.architecture: family for family in _ROWS})
BY_MODEL_TYPE: Final[dict[str, str]] = {
    model_type: family.architecture for family in _ROWS for model_type in family.model_types
}
_UNKNOWN: Final = MtpFamily("", (), at.behind_the_trunk, most_heads=1 << 30)


def find_mtp_family(architecture: str) -> MtpFamily:
    """The family; one with an empty name if no head of this architecture is known."""
    return FAMILIES.get(architecture, _UNKNOWN)
