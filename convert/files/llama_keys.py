"""Keys that llama.cpp reads without a default, and those by which it tells layers apart.

Of architectures that run here, and of those that llama.cpp alone runs: found by leaving keys out
and loading the file (tests/convert/verify/test_beside_llama_cpp.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .gguf_facts import GgufFacts, ranges

_HEADS: Final = "attention.head_count"
_ALWAYS: Final = (
    "context_length", "embedding_length", "block_count", _HEADS, "attention.layer_norm_rms_epsilon"
)  # fmt: skip
_WITHOUT_ATTENTION: Final = ("mamba2",)
_LAYER_NORM: Final = ("cohere2", "nemotron_h", "nemotron_h_moe")
_RENAMED: Final = {"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"}
_STATE: Final = (
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"
)  # fmt: skip
_WINDOWS: Final = ("attention.sliding_window", "attention.sliding_window_pattern")
_EXPERTS: Final = ("expert_count", "expert_used_count", "expert_feed_forward_length")
_SHARED: Final = (*_EXPERTS, "expert_shared_count")
_LATENT: Final = (
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
)
_INDEXER: Final = (
    "attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k"
)  # fmt: skip
_BY_ARCHITECTURE: Final[dict[str, tuple[str, ...]]] = {
    "bailingmoe2": (*_SHARED, "expert_gating_func"),
    "bailingmoe3": (
        *_SHARED, *_LATENT, "expert_gating_func", "leading_dense_block_count", "ssm.conv_kernel",
        "kda.head_dim", "kda.gate_lower_bound",
    ),
    "cohere2moe": (
        *_EXPERTS, "attention.sliding_window", "logit_scale", "leading_dense_block_count"
    ),
    "cohere2": ("logit_scale",),
    "deepseek2": (
        *_SHARED, *_LATENT, "attention.head_count_kv", "attention.key_length"
    ),
    "deepseek32": (
        *_SHARED, *_LATENT, *_INDEXER, "attention.q_lora_rank", "expert_gating_func"
    ),
    "deepseek4": (
        *_SHARED, *_INDEXER, "attention.q_lora_rank", "attention.sliding_window",
        "expert_weights_scale", "expert_weights_norm", "swiglu_clamp_exp",
        "attention.output_group_count", "attention.output_lora_rank",
        "attention.compress_rope_freq_base", "attention.compress_ratios",
        "hyper_connection.count", "hyper_connection.sinkhorn_iterations",
        "hyper_connection.epsilon", "hash_layer_count", "expert_gating_func",
    ),
    "dots3note": (
        *_SHARED, *_LATENT, *_WINDOWS, "leading_dense_block_count", "expert_gating_func",
        "attention.q_lora_rank", "attention.kv_lora_rank_swa", "attention.key_length_mla_swa",
        "attention.value_length_mla_swa", "rope.freq_base_swa", "attention.indexer.head_count",
    ),
    "ernie4_5-moe": ("interleave_moe_layer_step", "leading_dense_block_count"),
    "exaone-moe": (*_EXPERTS, "attention.sliding_window", "expert_gating_func"),
    "falcon-h1": _STATE,
    "gemma4": (
        "attention.value_length", "attention.value_length_swa", "embedding_length_per_layer_input"
    ),
    "glm-dsa": (*_SHARED, *_LATENT, *_INDEXER, "attention.q_lora_rank"),
    "glm4moe": _SHARED,
    "glm5-next": (
        *_SHARED, *_LATENT, *_INDEXER, "attention.q_lora_rank", "attention.indexer.kpool",
        "ssm.conv_kernel", "kda.head_dim",
    ),
    "gpt-oss": ("attention.sliding_window",),
    "granite": ("logit_scale",),
    "granitehybrid": _STATE,
    "granitemoe": ("logit_scale",),
    "hy_v3": _EXPERTS,
    "kimi-linear": (
        *_EXPERTS, *_LATENT, "expert_shared_count", "expert_gating_func", "ssm.conv_kernel",
        "kda.head_dim",
    ),
    "lfm2": ("shortconv.l_cache",),
    "lfm2moe": (*_EXPERTS, "shortconv.l_cache", "expert_gating_func"),
    "llama4": ("interleave_moe_layer_step",),
    "mamba2": _STATE,
    "mimo2": (*_EXPERTS, *_WINDOWS),
    "nemotron_h": _STATE,
    "nemotron_h_moe": _STATE,
    "qwen3next": (*_EXPERTS, *_STATE),
    "qwen35": _STATE,
    "qwen35moe": (*_EXPERTS, *_STATE),
    "qwen3moe": _EXPERTS,
    "qwen3vlmoe": _EXPERTS,
    "step35": (*_EXPERTS, *_WINDOWS),
}  # fmt: skip
_OF_EXPERTS: Final = "expert_feed_forward_length"
_WIDTHS: Final = {
    "feed_forward_length": "ffn_down",
    _OF_EXPERTS: "ffn_down_exps",
}
# Experts are as wide as feed_forward_length says, and have no key of their own.
_EXPERTS_ARE_DENSE: Final = ("llama", "granitemoe", "granitehybrid")
_SAYS_DENSE_WIDTH: Final = (*_EXPERTS_ARE_DENSE, "hunyuan-moe")
_SAYS_SHARED_WIDTH: Final = (
    "ernie4_5-moe", "granitehybrid", "granitemoe", "qwen2moe", "qwen35moe", "qwen3next", "step35"
)  # fmt: skip
_EXPERTS_AS_DENSE: Final = ("hunyuan-moe",)  # as wide as feed_forward_length says
_HYBRIDS: Final = ("qwen3next", "qwen35", "qwen35moe")
# Whose layers attend where the key says that they have key-value heads.
_KV_HEADS_TELL: Final = (
    "granitehybrid", "kimi-linear", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"
)  # fmt: skip
_ATTENTION: Final = ("attn_k", "attn_qkv")
_USUAL_INTERVAL: Final = 4
_COUNTS_DENSE: Final = (
    "bailingmoe2", "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "dots3note",
    "exaone-moe", "glm-dsa", "glm4moe", "glm5-next",
)  # fmt: skip


def needed_keys(facts: GgufFacts) -> Iterator[str]:
    """Without the architecture's prefix; of tensors that are there, too."""
    architecture = facts.architecture
    renamed = _RENAMED if architecture in _LAYER_NORM else {}
    for usual in (*_ALWAYS, *_BY_ARCHITECTURE.get(architecture, ())):
        if usual != _HEADS or architecture not in _WITHOUT_ATTENTION:
            yield renamed.get(usual, usual)
    stems = set[str]().union(*(facts.blocks[n] for n in facts.trunk_blocks))
    if "ffn_down" in stems or ("ffn_down_exps" in stems and architecture in _SAYS_DENSE_WIDTH):
        yield "feed_forward_length"
    if "ffn_down_exps" in stems:
        yield from _EXPERTS if architecture not in _EXPERTS_ARE_DENSE else _EXPERTS[:2]
    if "ffn_down_shexp" in stems and architecture in _SAYS_SHARED_WIDTH:
        yield "expert_shared_feed_forward_length"
    if facts.whole("expert_group_count") and architecture in ("bailingmoe2", "deepseek2"):
        yield "expert_group_used_count"


def missing_keys(facts: GgufFacts) -> Iterator[str]:
    for key in dict.fromkeys(needed_keys(facts)):
        if not facts.file.metadata.has(key):
            yield key


def misread_widths(facts: GgufFacts) -> Iterator[str]:
    """llama.cpp takes widths from keys, where others take them from tensors."""
    for key, stem in _WIDTHS.items():
        said = facts.per_block(key)
        if key == _OF_EXPERTS and facts.architecture in _EXPERTS_AS_DENSE:
            continue
        for n, width in enumerate(said):
            tensor = facts.file.tensors.get(f"blk.{n}.{stem}.weight")
            if tensor is not None and 0 < width != tensor.shape[-1]:
                yield f"{key} is {width}, but {tensor.name} is {tensor.shape[-1]} wide"
                break


def misread_layers(facts: GgufFacts) -> Iterator[str]:
    """What llama.cpp takes for a layer of another kind, by the keys."""
    if facts.architecture in _HYBRIDS and not facts.file.metadata.has("attention.recurrent_layers"):
        yield from _by_interval(facts)
    if facts.architecture in _KV_HEADS_TELL:
        yield from _by_kv_heads(facts)
    if facts.architecture in _COUNTS_DENSE:
        yield from _by_dense_count(facts)


def _by_interval(facts: GgufFacts) -> Iterator[str]:
    key = "full_attention_interval"
    interval = facts.whole(key, low=1) or _USUAL_INTERVAL
    wrong = [
        n
        for n in facts.trunk_blocks
        if ("ssm_conv1d" in facts.blocks[n]) != ((n + 1) % interval != 0)
    ]
    if wrong:
        said = f"is {interval}" if facts.file.metadata.has(key) else f"is missing ({interval})"
        yield (
            f"{facts.architecture}.{key} {said}, but by its tensors blk.{ranges(wrong)} is not "
            "what that says, recurrent or attention"
        )


def _by_kv_heads(facts: GgufFacts) -> Iterator[str]:
    key = "attention.head_count_kv"
    stems = ("attn_kv_a_mqa",) if facts.architecture == "kimi-linear" else _ATTENTION
    wrong = [
        n
        for n, n_heads in zip(facts.trunk_blocks, facts.per_block(key), strict=False)
        if bool(n_heads) != any(stem in facts.blocks[n] for stem in stems)
    ]
    if wrong:
        yield (
            f"{facts.architecture}.{key} is not 0 where a layer has no attention, and only there: "
            f"by its tensors blk.{ranges(wrong)} is not what it says"
        )


def _by_dense_count(facts: GgufFacts) -> Iterator[str]:
    key = "leading_dense_block_count"
    n_dense = facts.whole(key) or 0
    with_experts = [n for n in facts.trunk_blocks if "ffn_gate_inp" in facts.blocks[n]]
    dense = [n for n in facts.trunk_blocks if "ffn_down" in facts.blocks[n]]
    wrong = [n for n in with_experts if n < n_dense] + [n for n in dense if n >= n_dense]
    if wrong:
        said = f"is {n_dense}" if facts.file.metadata.has(key) else "is missing"
        yield (
            f"{facts.architecture}.{key} {said}, but by its tensors blk.{ranges(wrong)} is not "
            "what that says, dense or experts"
        )
