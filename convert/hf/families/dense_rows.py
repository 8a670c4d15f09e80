"""Families that differ from Llama and Qwen in little: a row each, by `model_type`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from ..checkpoint_family import CheckpointFamily, MtpPlace
from ..rope_setting import RopeTraits
from ..tokenizer.tokenizer_traits import GLM, TokenizerTraits
from . import dense_keys as keys
from . import llama4_keys as llama4
from . import scaled_keys as scaled
from .rotated_rows import heads_as_neighbours, llama_keys
from .turned_experts import put_turned_down, put_turned_gate_up

_BEHIND: Final = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TURNED: Final = dict.fromkeys(("attn_q", "attn_k"), heads_as_neighbours)


def _granite(architecture: str) -> CheckpointFamily:
    return CheckpointFamily(
        architecture,
        stems={
            "mlp.router.layer": "ffn_gate_inp",
            "mlp.output_linear": "ffn_down_exps",
        },
        planners={
            "mlp.input_linear.weight": keys.put_experts,
            "shared_mlp.input_linear.weight": keys.put_shared_or_dense,
            "shared_mlp.output_linear.weight": keys.put_shared_or_dense_down,
        },
        orders=_TURNED,
        keys=keys.granite_keys,
    )


_GRANITE_MOE: Final = _granite("granitemoe")
_MISTRAL3: Final = CheckpointFamily(
    "mistral3", rope_theta=1e6, rms_eps=1e-5, orders=_TURNED, keys=scaled.mistral3_keys
)
_ERNIE_FUSED: Final = {
    "self_attn.qkv_proj.weight": scaled.put_fused_qkv,
    "mlp.up_gate_proj.weight": scaled.put_fused_gate,
}
_HUNYUAN_NORMS: Final = {
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
}
_QWEN_TOKENS: Final = TokenizerTraits(pre="qwen2")
_QWEN2_VL: Final = CheckpointFamily(
    "qwen2vl",
    rope_theta=1e6,
    rope=RopeTraits(sections=(16, 24, 24)),
    tokenizer=_QWEN_TOKENS,
)


def _qwen3_vl(architecture: str) -> CheckpointFamily:
    return CheckpointFamily(
        architecture,
        rope_theta=5e6,
        head_dim=128,
        rope=RopeTraits(sections=(24, 20, 20)),
        planners={
            "mlp.experts.gate_up_proj": put_turned_gate_up,
            "mlp.experts.down_proj": put_turned_down,
        },
        keys=scaled.tower_keys,
        tokenizer=_QWEN_TOKENS,
    )


_LLAMA4: Final = CheckpointFamily(
    "llama4",
    rope_theta=5e5,
    rms_eps=1e-5,
    head_dim=128,
    stems=llama4.STEMS,
    planners={
        "feed_forward.experts.gate_up_proj": put_turned_gate_up,
        "feed_forward.experts.down_proj": put_turned_down,
    },
    sizes=llama4.llama4_sizes,
    keys=llama4.llama4_keys,
    tokenizer=TokenizerTraits(pre="llama4"),
)
_QWEN3_VL, _QWEN3_VL_MOE = _qwen3_vl("qwen3vl"), _qwen3_vl("qwen3vlmoe")
_OLMO: Final = CheckpointFamily(
    "olmo2",
    rms_eps=1e-5,
    rope=RopeTraits(has_window_base=True),
    stems=_BEHIND,
    keys=keys.windowed_keys,
    is_windowed=True,
)
DENSE_FAMILIES: Final = MappingProxyType(
    {
        "llama4": _LLAMA4,
        "llama4_text": _LLAMA4,
        "olmo2": _OLMO,
        "olmo3": _OLMO,
        "smollm3": CheckpointFamily(
            "smollm3",
            rope_theta=2e6,
            is_tied=True,
            orders=_TURNED,
            keys=llama_keys,
        ),
        "granite": _granite("granite"),
        "granitemoe": _GRANITE_MOE,
        "granitemoeshared": _GRANITE_MOE,
        "phi3": CheckpointFamily(
            "phi3",
            rms_eps=1e-5,
            rope=RopeTraits(is_partial=True, kinds=("longrope", "su")),
            stems={"mlp.gate_up_proj": "ffn_up"},
            keys=keys.phi3_keys,
            finish=keys.put_rope_factors,
        ),
        "glm4": CheckpointFamily(
            "glm4",
            rms_eps=1.5625e-07,
            head_dim=128,
            rope=RopeTraits(share=0.5, is_partial=True),
            stems={
                "post_self_attn_layernorm": "post_attention_norm",
                "post_attention_layernorm": "ffn_norm",
                "post_mlp_layernorm": "post_ffw_norm",
                "mlp.gate_up_proj": "ffn_up",
            },
            keys=keys.rotated_keys,
            tokenizer=GLM,
        ),
        "qwen2_moe": CheckpointFamily(
            "qwen2moe",
            stems={
                "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
                "mlp.shared_expert.up_proj": "ffn_up_shexp",
                "mlp.shared_expert.down_proj": "ffn_down_shexp",
            },
            planners={"mlp.shared_expert_gate.weight": keys.put_shared_gate},
            keys=keys.qwen2_moe_keys,
            tokenizer=TokenizerTraits(pre="qwen2"),
        ),
        "seed_oss": CheckpointFamily(
            "seed_oss",
            head_dim=128,
            stems={"post_attention_layernorm": "post_attention_norm"},
            tokenizer=TokenizerTraits(pre="seed-coder"),
        ),
        "exaone4": CheckpointFamily(
            "exaone4",
            rms_eps=1e-5,
            stems=_BEHIND,
            keys=keys.exaone4_keys,
            is_windowed=True,
            tokenizer=TokenizerTraits(pre="exaone4"),
        ),
        "gemma2": CheckpointFamily(
            "gemma2",
            head_dim=256,
            defaults={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
            activations=("gelu_pytorch_tanh",),
            is_tied=True,
            shifted_norms=True,
            stems=_BEHIND | {"pre_feedforward_layernorm": "ffn_norm"},
            keys=keys.gemma2_keys,
            is_windowed=True,
        ),
        "mistral3": _MISTRAL3,
        "ministral3": _MISTRAL3,
        "cohere2": CheckpointFamily(
            "cohere2",
            is_tied=True,
            keys=scaled.cohere2_keys,
            is_windowed=True,
            tokenizer=TokenizerTraits(pre="command-r"),
        ),
        "hunyuan_v1_dense": CheckpointFamily(
            "hunyuan-dense",
            rms_eps=1e-5,
            rope=RopeTraits(kinds=("dynamic",)),
            stems=_HUNYUAN_NORMS,
            keys=scaled.hunyuan_keys,
            tokenizer=TokenizerTraits(pre="hunyuan-dense"),
        ),
        "hunyuan_v1_moe": CheckpointFamily(
            "hunyuan-moe",
            rms_eps=1e-5,
            rope=RopeTraits(kinds=("dynamic",)),
            stems=_HUNYUAN_NORMS
            | {
                "mlp.gate.wg": "ffn_gate_inp",
                "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
                "mlp.shared_mlp.up_proj": "ffn_up_shexp",
                "mlp.shared_mlp.down_proj": "ffn_down_shexp",
            },
            keys=scaled.hunyuan_moe_keys,
            tokenizer=TokenizerTraits(pre="hunyuan"),
        ),
        "ernie4_5": CheckpointFamily(
            "ernie4_5",
            rope_theta=5e5,
            rms_eps=1e-5,
            is_tied=True,
            planners=_ERNIE_FUSED,
        ),
        "ernie4_5_moe": CheckpointFamily(
            "ernie4_5-moe",
            rope_theta=5e5,
            rms_eps=1e-5,
            is_tied=True,
            planners=_ERNIE_FUSED,
            whole={"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
            keys=scaled.ernie_moe_keys,
        ),
        "bailing_moe_v2": CheckpointFamily(
            "bailingmoe2",
            rope=RopeTraits(share=0.5, is_partial=True),
            mtp=MtpPlace.BEHIND,
            outside={"word_embeddings.weight": "token_embd.weight"},
            keys=scaled.bailing_keys,
            tokenizer=TokenizerTraits(pre="bailingmoe2"),
        ),
        "qwen2_vl": _QWEN2_VL,
        "qwen2_vl_text": _QWEN2_VL,
        "qwen2_5_vl": _QWEN2_VL,
        "qwen2_5_vl_text": _QWEN2_VL,
        "qwen3_vl": _QWEN3_VL,
        "qwen3_vl_text": _QWEN3_VL,
        "qwen3_vl_moe": _QWEN3_VL_MOE,
        "qwen3_vl_moe_text": _QWEN3_VL_MOE,
    }
)
