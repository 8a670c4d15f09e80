"""Families with Mamba-2 layers or short convolutions: a row each, by `model_type`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from ..checkpoint_family import CheckpointFamily, MtpPlace
from ..rope_setting import RopeTraits
from ..tokenizer.tokenizer_traits import TokenizerTraits
from . import dense_keys as dense
from . import kimi_rows as kimi
from . import state_space_keys as keys
from .latent_rows import KV_B, put_latent_keys_and_values
from .rotated_rows import heads_as_neighbours

_TURNED: Final = dict.fromkeys(("attn_q", "attn_k"), heads_as_neighbours)
_FEED_FORWARD: Final = {
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "pre_ff_layernorm": "ffn_norm",
}


def _lfm2(architecture: str) -> CheckpointFamily:
    return CheckpointFamily(
        architecture,
        rope_theta=1e6,
        rms_eps=1e-5,
        is_tied=True,
        stems={
            "operator_norm": "attn_norm",
            "ffn_norm": "ffn_norm",
            "conv.conv": "shortconv.conv",
            "conv.in_proj": "shortconv.in_proj",
            "conv.out_proj": "shortconv.out_proj",
            "self_attn.q_layernorm": "attn_q_norm",
            "self_attn.k_layernorm": "attn_k_norm",
            "self_attn.out_proj": "attn_output",
            "feed_forward.w1": "ffn_gate",
            "feed_forward.w2": "ffn_down",
            "feed_forward.w3": "ffn_up",
            "feed_forward.gate": "ffn_gate_inp",
        },
        whole={"feed_forward.expert_bias": "exp_probs_b.bias"},
        outside={"embedding_norm.weight": "token_embd_norm.weight"},
        keys=keys.lfm2_keys,
        tokenizer=TokenizerTraits(pre="lfm2"),
    )


_NEMOTRON: Final = CheckpointFamily(
    "nemotron_h",
    rms_eps=1e-5,
    activations=("relu2",),
    stems=keys.mamba_stems("mixer")
    | {
        "norm": "attn_norm",
        "mixer.q_proj": "attn_q",
        "mixer.k_proj": "attn_k",
        "mixer.v_proj": "attn_v",
        "mixer.o_proj": "attn_output",
        "mixer.up_proj": "ffn_up",
        "mixer.down_proj": "ffn_down",
    },
    planners=keys.mamba_planners("mixer"),
    outside=keys.OUTSIDE_OF_MAMBA,
    orders=_TURNED,
    keys=keys.nemotron_keys,
)
FAMILIES_WITH_STATES: Final = MappingProxyType(
    {
        "lfm2": _lfm2("lfm2"),
        "lfm2_moe": _lfm2("lfm2moe"),
        "granitemoehybrid": CheckpointFamily(
            "granitehybrid",
            stems={
                **keys.mamba_stems("mamba"),
                "mlp.router.layer": "ffn_gate_inp",
                "mlp.output_linear": "ffn_down_exps",
            },
            planners={
                **keys.mamba_planners("mamba"),
                "mlp.input_linear.weight": dense.put_experts,
                "shared_mlp.input_linear.weight": dense.put_shared_or_dense,
                "shared_mlp.output_linear.weight": dense.put_shared_or_dense_down,
            },
            orders=_TURNED,
            keys=keys.granite_hybrid_keys,
            variant=keys.granite_variant,
        ),
        "bamba": CheckpointFamily(
            "granitehybrid",
            rms_eps=1e-5,
            rope=RopeTraits(share=0.5, is_partial=True),
            stems=keys.mamba_stems("mamba") | _FEED_FORWARD,
            planners=keys.mamba_planners("mamba"),
            outside={"final_layernorm.weight": "output_norm.weight"},
            orders=dict.fromkeys(("attn_q", "attn_k"), keys.turned_part_as_neighbours),
            keys=keys.bamba_keys,
        ),
        "falcon_h1": CheckpointFamily(
            "falcon-h1",
            rms_eps=1e-5,
            stems=keys.mamba_stems("mamba") | _FEED_FORWARD,
            whole={"pre_ff_layernorm.weight": "ffn_norm"},  # the only name that readers know
            planners=keys.mamba_planners("mamba"),
            outside={"final_layernorm.weight": "output_norm.weight"},
            finish=keys.multiply_falcon,
            keys=keys.falcon_keys,
            tokenizer=TokenizerTraits(pre="falcon-h1"),
        ),
        "kimi_linear": CheckpointFamily(
            "kimi-linear",
            rms_eps=1e-5,
            stems=kimi.STEMS,
            whole=kimi.WHOLE,
            planners={KV_B: put_latent_keys_and_values, **kimi.PLANNERS},
            sizes=kimi.kimi_sizes,
            keys=kimi.kimi_keys,
            tokenizer=TokenizerTraits(pre="kimi-k2"),
        ),
        "mamba2": CheckpointFamily(
            "mamba2",
            rms_eps=1e-5,
            defaults={"num_attention_heads": 1, "max_position_embeddings": keys.ANY_LENGTH},
            stems=keys.mamba_stems("mixer") | {"norm": "attn_norm"},
            planners=keys.mamba_planners("mixer"),
            outside=keys.OUTSIDE_OF_MAMBA,
            keys=keys.mamba2_keys,
        ),
        "nemotron_h": replace(_NEMOTRON, sizes=keys.without_experts, variant=keys.nemotron_variant),
        "nemotron_h_moe": replace(
            _NEMOTRON,
            architecture="nemotron_h_moe",
            mtp=MtpPlace.APART,
            head_name=keys.nemotron_head_name,
            keys=keys.nemotron_moe_keys,
        ),
    }
)
