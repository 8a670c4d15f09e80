"""Where checkpoints keep the blocks of a head, and what `config.json` says of them, by family."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .mtp_family import Names

if TYPE_CHECKING:
    from .checkpoint_weights import CheckpointWeights

Config = Mapping[str, Any]
Keys = dict[str, list[Any]]

SHARED: Final[Mapping[str, str]] = {
    "fc.weight": "eh_proj.weight",
    "pre_fc_norm_embedding.weight": "enorm.weight",
    "pre_fc_norm_hidden.weight": "hnorm.weight",
    "norm.weight": "shared_head.norm.weight",
    "embed_tokens.weight": "embed_tokens.weight",
    "lm_head.weight": "shared_head.head.weight",
}
_EXPERT: Final = re.compile(r"ffn\.experts\.(\d+)\.w([123])\.weight")
_EXPERT_PARTS: Final = {"1": "gate", "2": "down", "3": "up"}
_DOTS_EMBEDDING: Final = "mtp.embed_tokens.weight"
_DOTS_RANKS: Final = {
    "attn_q_a_norm.weight": "q_lora_rank",
    "attn_kv_a_norm.weight": "kv_lora_rank",
}
_STEP_CLAMPS: Final = {
    "swiglu_clamp_exp": "swiglu_limits",
    "swiglu_clamp_shexp": "swiglu_limits_shared",
}


# Blocks ------------------------------------------------------------------------------------------


def numbered(weights: CheckpointWeights, prefix: str, first: int) -> list[Names]:
    """Blocks from number `first` on, up to the first that is not there."""
    found: dict[int, Names] = {}
    for name in weights.names():
        number, _, inner = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and number.isdecimal() and len(number) < 6:
            found.setdefault(int(number), {})[inner] = name
    blocks: list[Names] = []
    while first + len(blocks) in found:
        blocks.append(found[first + len(blocks)])
    return blocks


def behind_the_trunk(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """Blocks of layers `model.layers.N`, N from the number of layers on."""
    return numbered(weights, "model.layers.", n_trunk)


def of_their_own(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """Blocks of layers `mtp.layers.N`, each complete."""
    return numbered(weights, "mtp.layers.", 0)


def with_shared_parts(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """Blocks of layers `mtp.layers.N`; projection and norms are there once, for all of them."""
    shared = {
        SHARED[name.removeprefix("mtp.")]: name
        for name in weights.names()
        if name.removeprefix("mtp.") in SHARED and name.startswith("mtp.")
    }
    blocks = of_their_own(weights, n_trunk)
    if blocks and weights.config.get("mtp_share_layers") is True:  # one layer, used several times
        blocks *= max(1, weights.config.get("num_nextn_predict_layers") or 1)
    return [shared | block for block in blocks]


def deepseek4_blocks(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """Blocks of layers `mtp.N`, experts under other names."""

    def expert(match: re.Match[str]) -> str:
        return f"mlp.experts.{match[1]}.{_EXPERT_PARTS[match[2]]}_proj.weight"

    return [
        {_EXPERT.sub(expert, inner): name for inner, name in block.items()}
        for block in numbered(weights, "mtp.", 0)
    ]


def dots_blocks(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    blocks = behind_the_trunk(weights, n_trunk)
    if blocks and _DOTS_EMBEDDING in weights:
        blocks[0]["embed_tokens.weight"] = _DOTS_EMBEDDING
    return blocks


def step_blocks(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    return [
        {inner.removeprefix("transformer."): name for inner, name in block.items()}
        for block in behind_the_trunk(weights, n_trunk)
    ]


def nemotron_block(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """An attention layer and an expert layer, which are one block in GGUF."""
    layers = [*of_their_own(weights, n_trunk)[:2], {}, {}]
    first, second = layers[0], layers[1]
    if "norm.weight" in second:
        second["post_attention_norm.weight"] = second.pop("norm.weight")
    return [first | second] if first else []


def dots_factors(weights: CheckpointWeights) -> dict[str, float]:
    """The model multiplies what comes out of the norms of both latents by a constant; GGUF has it
    in the norms."""
    if weights.config.get("apply_mla_qkv_lora_rescale", True) is False:
        return {}
    width = weights.number("hidden_size")
    return {
        stem: math.sqrt(width / weights.number(f"swa_{key}", key))
        for stem, key in _DOTS_RANKS.items()
    }


# Values of per-layer keys for the blocks of the head ---------------------------------------------


def in_each_head(
    key: str, value: object, *, has_clamps: bool = False
) -> Callable[[Config, int, int], Keys]:
    def keys(config: Config, n_trunk: int, n_heads: int) -> Keys:
        return {key: [value] * n_heads} | (_clamps(config, n_heads) if has_clamps else {})

    return keys


def dots_keys(config: Config, n_trunk: int, n_heads: int) -> Keys:
    """Windowed layers have sizes of their own (`swa_*` of config.json), and the head is one."""
    found = _window_pattern(["sliding_attention"] * n_heads)
    if isinstance(n := config.get("swa_num_attention_heads"), int):
        found["attention.head_count"] = [n] * n_heads
    return found


def exaone_keys(config: Config, n_trunk: int, n_heads: int) -> Keys:
    """Full attention, unless the configuration says otherwise."""
    kinds = config.get("mtp_layer_types")
    if not isinstance(kinds, list):
        kinds = (config.get("layer_types") or [])[n_trunk:]
    if len(kinds) < n_heads:
        kinds = ["full_attention"] * n_heads
    return _window_pattern(kinds[:n_heads])


def step_keys(config: Config, n_trunk: int, n_heads: int) -> Keys:
    """The lists of config.json go on behind the trunk."""
    kinds = config.get("mtp_layer_types")  # as transformers saves it again
    if not isinstance(kinds, list) or len(kinds) < n_heads:
        kinds = _tail(config.get("layer_types"), n_trunk, n_heads)
    found = _window_pattern(kinds[:n_heads]) if kinds[:n_heads] else {}
    for key, name in _STEP_CLAMPS.items():
        if limits := _tail(config.get(name), n_trunk, n_heads):
            found[key] = [float(limit or 0) for limit in limits]
    return found


def _window_pattern(kinds: list[Any]) -> Keys:
    return {"attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds]}


def _clamps(config: Config, n_heads: int) -> Keys:
    """Limits of the experts' activations, where all layers share one."""
    limit = config.get("swiglu_limit")
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        return {}
    return dict.fromkeys(("swiglu_clamp_exp", "swiglu_clamp_shexp"), [float(limit)] * n_heads)


def _tail(values: Any, n_trunk: int, n_heads: int) -> list[Any]:
    """The heads' entries of a list; empty if it has none."""
    tail = values[n_trunk : n_trunk + n_heads] if isinstance(values, list) else []
    return tail if len(tail) == n_heads else []
