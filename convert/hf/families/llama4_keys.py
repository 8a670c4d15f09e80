"""Keys of Llama 4. Readers of GGUF know by heart which layers have rope and how queries grow: what
a file cannot say is refused, and values of our own reader's keys are written where they differ.
"""

from __future__ import annotations

from typing import Final

from ....core.models.llama4 import CHUNK, GROWTH, PERIOD, WITHOUT_NORMS
from ..checkpoint_family import Keys
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import f32
from .rotated_rows import llama_keys

STEMS: Final = {
    "feed_forward.router": "ffn_gate_inp",
    **{f"feed_forward.{kind}_proj": f"ffn_{kind}" for kind in ("gate", "up", "down")},
    **{
        f"feed_forward.shared_expert.{kind}_proj": f"ffn_{kind}_shexp"
        for kind in ("gate", "up", "down")
    },
}


def llama4_sizes(config: ModelConfig, n_layers: int, n_heads: int) -> Keys:
    """`intermediate_size` is that of an expert."""
    if not config.count("num_local_experts"):
        raise config.error("num_local_experts is missing: GGUF's graph of Llama 4 has experts")
    return {
        "n_ff": config.size("intermediate_size_mlp"),
        "n_ff_expert": config.size("intermediate_size"),
    }


def llama4_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    _check_layers(config, sizes)
    is_normed = config.get("use_qk_norm") is not False
    if is_normed == (sizes.n_experts == WITHOUT_NORMS):
        raise config.error(
            f"use_qk_norm is {is_normed} with {sizes.n_experts} experts; GGUF's graph has norms "
            f"unless there are {WITHOUT_NORMS}"
        )
    keys = llama_keys(config, sizes, rope) | {
        "interleave_moe_layer_step": config.size("interleave_moe_layer_step", default=1),
        "expert_feed_forward_length": sizes.n_ff_expert,
    }
    chunk = config.size("attention_chunk_size", default=CHUNK)
    length = config.size("floor_scale", default=CHUNK)
    growth = config.number("attn_scale", config.get("attn_scale"), GROWTH)
    if config.get("attn_temperature_tuning") is False:
        growth = 0.0
    return keys | {
        "attention.sliding_window": None if chunk == CHUNK else chunk,
        "attention.temperature_length": None if length == CHUNK else length,
        "attention.temperature_scale": None if growth == GROWTH else f32(growth),
    }


def _check_layers(config: ModelConfig, sizes: ModelSizes) -> None:
    is_turned = [(i + 1) % PERIOD != 0 for i in range(sizes.n_layers)]
    named = config.get("no_rope_layers") or is_turned
    kinds = config.get("layer_types") or [
        "chunked_attention" if turned else "full_attention" for turned in is_turned
    ]
    step = config.size("interleave_moe_layer_step", default=1)
    mixed = list(range(step - 1, sizes.n_layers, step))
    for name, found, wanted in (
        ("no_rope_layers", [bool(turned) for turned in named], is_turned),
        ("layer_types", [kind == "chunked_attention" for kind in kinds], is_turned),
        ("moe_layers", config.get("moe_layers") or mixed, mixed),
    ):
        if list(found)[: sizes.n_layers] != wanted:
            raise config.error(f"{name} are not those of GGUF's graph, which knows one pattern")
