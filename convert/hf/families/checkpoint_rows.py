"""The families that can be converted: a row each, by the `model_type` of config.json."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ..checkpoint_family import CheckpointFamily, MtpPlace
from ..model_config import ModelConfig
from ..rope_setting import RopeTraits
from ..tokenizer.tokenizer_traits import GEMMA4, GLM, TokenizerTraits
from . import delta_rule_rows as delta
from . import gemma_rows as gemma
from . import oss_rows as oss
from .dense_rows import DENSE_FAMILIES
from .exaone_keys import exaone_moe_keys
from .expert_keys import softmax_router_keys
from .glm_keys import glm_moe_keys
from .latent_rows import (
    KV_B,
    put_latent_keys_and_values,
    read_latent_sizes,
    sigmoid_latent_keys,
    softmax_latent_keys,
)
from .mimo_rows import QKV, fuse_heads, mimo_keys, put_qkv
from .rotated_rows import heads_as_neighbours, llama_keys
from .state_space_rows import FAMILIES_WITH_STATES
from .step_keys import step_factors, step_keys

_QUARTER: Final = RopeTraits(share=0.25, is_partial=True)
_GELU: Final = ("gelu_pytorch_tanh",)
_QWEN_TOKENS: Final = TokenizerTraits(pre="qwen2")
_DEEPSEEK_TOKENS: Final = TokenizerTraits(pre="deepseek-v3")


def _llama(rope_theta: float = 1e4, rms_eps: float = 1e-6) -> CheckpointFamily:
    orders = dict.fromkeys(("attn_q", "attn_k"), heads_as_neighbours)
    return CheckpointFamily("llama", rope_theta, rms_eps, orders=orders, keys=llama_keys)


def _hybrid(architecture: str, *, is_tiled: bool) -> CheckpointFamily:
    """Qwen3.5 stores value heads in turn, Qwen3-Next as its checkpoints have them."""
    sections = RopeTraits(share=0.25, is_partial=True, sections=(11, 11, 10))
    return CheckpointFamily(
        architecture,
        head_dim=256,
        rope=sections if is_tiled else _QUARTER,
        mtp=MtpPlace.APART,
        shifted_norms=True,
        stems=delta.STEMS,
        planners={
            "linear_attn.A_log": delta.put_tiled_decay if is_tiled else delta.put_decay,
            "linear_attn.dt_bias": delta.put_tiled_step if is_tiled else delta.put_step,
            "linear_attn.in_proj_qkvz.weight": delta.put_qkvz,
        },
        orders=delta.TILED_ROWS if is_tiled else {},
        column_orders=delta.TILED_COLUMNS if is_tiled else {},
        sizes=delta.read_delta_rule,
        tokenizer=_QWEN_TOKENS,
        keys=delta.hybrid_keys,
    )


def _latent(
    *,
    is_sigmoid: bool = True,
    rms_eps: float = 1e-6,
    tokenizer: TokenizerTraits = _DEEPSEEK_TOKENS,
) -> CheckpointFamily:
    return CheckpointFamily(
        "deepseek2",
        rms_eps=rms_eps,
        rope=RopeTraits(has_log_multiplier=True),
        mtp=MtpPlace.BEHIND,
        planners={KV_B: put_latent_keys_and_values},
        sizes=read_latent_sizes,
        keys=sigmoid_latent_keys if is_sigmoid else softmax_latent_keys,
        tokenizer=tokenizer,
    )


_QWEN35: Final = _hybrid("qwen35", is_tiled=True)
_QWEN35MOE: Final = _hybrid("qwen35moe", is_tiled=True)
_GLM_MOE: Final = CheckpointFamily(
    "glm4moe",
    rms_eps=1e-5,
    rope=RopeTraits(share=0.5, is_partial=True, sections=()),
    mtp=MtpPlace.BEHIND,
    keys=glm_moe_keys,
    tokenizer=GLM,
)
_KIMI: Final = _latent(tokenizer=TokenizerTraits(pre="kimi-k2"))
_MIMO: Final = CheckpointFamily(
    "mimo2",
    rope_theta=5e6,
    rms_eps=1e-5,
    rope=RopeTraits(share=0.334, is_partial=True, has_window_base=True),
    mtp=MtpPlace.APART,
    planners={QKV: put_qkv},
    finish=fuse_heads,
    keys=mimo_keys,
    is_windowed=True,
    tokenizer=_QWEN_TOKENS,
)
_STEP: Final = CheckpointFamily(
    "step35",
    rms_eps=1e-5,
    rope=RopeTraits(share=0.5, is_partial=True, has_window_base=True),
    mtp=MtpPlace.BEHIND,
    shifted_norms=True,
    keys=step_keys,
    rope_factors=step_factors,
    is_windowed=True,
    tokenizer=_DEEPSEEK_TOKENS,
)
_GEMMA3: Final = CheckpointFamily(
    "gemma3",
    rope_theta=1e6,
    head_dim=256,
    defaults=gemma.GEMMA3_DEFAULTS,
    activations=_GELU,
    is_tied=True,
    rope=RopeTraits(has_window_base=True),
    shifted_norms=True,
    stems=gemma.NORMS,
    keys=gemma.gemma3_keys,
    is_windowed=True,
)
_GEMMA4: Final = CheckpointFamily(
    "gemma4",
    rope_theta=1e6,
    activations=_GELU,
    is_tied=True,
    rope=RopeTraits(is_partial=True, kinds=("proportional",), has_window_base=True),
    stems=gemma.GEMMA4_STEMS,
    whole=gemma.GEMMA4_WHOLE,
    outside=gemma.GEMMA4_OUTSIDE,
    planners={
        "experts.gate_up_proj": gemma.put_fused_experts,
        "experts.down_proj": gemma.put_down_experts,
    },
    keys=gemma.gemma4_keys,
    rope_factors=gemma.proportional_factors,
    is_windowed=True,
    tokenizer=GEMMA4,
)

FAMILIES: Final = MappingProxyType(
    {
        "llama": _llama(),
        "mistral": _llama(),
        "mixtral": _llama(rope_theta=1e6, rms_eps=1e-5),
        "qwen2": CheckpointFamily("qwen2", tokenizer=_QWEN_TOKENS),
        "qwen3": CheckpointFamily(
            "qwen3", head_dim=128, keys=softmax_router_keys, tokenizer=_QWEN_TOKENS
        ),
        "qwen3_moe": CheckpointFamily("qwen3moe", keys=softmax_router_keys, tokenizer=_QWEN_TOKENS),
        "qwen3_next": _hybrid("qwen3next", is_tiled=False),
        "qwen3_5": _QWEN35,
        "qwen3_5_text": _QWEN35,
        "qwen3_5_moe": _QWEN35MOE,
        "qwen3_5_moe_text": _QWEN35MOE,
        "glm4_moe": _GLM_MOE,
        "glm4v_moe": _GLM_MOE,
        "glm4v_moe_text": _GLM_MOE,
        "glm4_moe_lite": _latent(rms_eps=1e-5, tokenizer=GLM),
        "deepseek_v2": _latent(is_sigmoid=False),
        "deepseek_v3": _latent(),
        "kimi_k2": _KIMI,
        "kimi_k25": _KIMI,
        "mimo_v2_flash": _MIMO,
        "mimo_v2": _MIMO,
        "step3p5": _STEP,
        "step3p7": _STEP,
        "step3p7_text": _STEP,
        "exaone_moe": CheckpointFamily(
            "exaone-moe",
            rms_eps=1e-5,
            mtp=MtpPlace.APART,
            keys=exaone_moe_keys,
            is_windowed=True,
            tokenizer=TokenizerTraits(pre="exaone-moe"),
        ),
        "gpt_oss": CheckpointFamily(
            "gpt-oss",
            rope_theta=150000.0,
            rms_eps=1e-5,
            head_dim=64,
            rope=RopeTraits(whole_pairs=False),
            stems=oss.STEMS,
            whole=oss.WHOLE,
            planners=oss.PLANNERS,
            keys=oss.oss_keys,
            is_windowed=True,
            tokenizer=TokenizerTraits(pre="gpt-4o"),
        ),
        "gemma3": _GEMMA3,
        "gemma3_text": _GEMMA3,
        "gemma4": _GEMMA4,
        "gemma4_text": _GEMMA4,
        "gemma4_unified": _GEMMA4,
        "gemma4_unified_text": _GEMMA4,
        **DENSE_FAMILIES,
        **FAMILIES_WITH_STATES,
    }
)


def find_family(config: ModelConfig) -> CheckpointFamily:
    """The family of the language model's `model_type`, which decides in `transformers` as well."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        classes = config.values.get("architectures")
        name = config.model_type or (
            str(classes[0]) if isinstance(classes, list) and classes else ""
        )
        raise ModelError(
            f"{config.label}: model type {printable(name)} cannot be converted (known: "
            f"{', '.join(FAMILIES)})"
        )
    if (variant := family.variant(config)) is not None:
        family = FAMILIES[variant]
    check_activation(config, family)
    return family


def check_activation(config: ModelConfig, family: CheckpointFamily) -> None:
    activation = config.get("hidden_act", "hidden_activation")
    if activation is not None and activation not in family.activations:
        allowed = family.activations[0].split("_", maxsplit=1)[0]
        raise config.error(
            f"hidden_act is {printable(activation)}; GGUF's graph has {allowed} alone"
        )
