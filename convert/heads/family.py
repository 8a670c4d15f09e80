"""How the checkpoints of one model family store an MTP head: where it is, and what it is called.

A family is data. What a name alone cannot say (experts to be stacked, matrices to be split) is in
`blocks.py`, by stem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from .weights import CheckpointWeights

Names = dict[str, str]  # a tensor's name inside of its block -> in the checkpoint
Layout = Callable[[CheckpointWeights, int], list[Names]]
Factors = Callable[[CheckpointWeights], dict[str, float]]
LayerKeys = Callable[[Mapping[str, Any], int, int], dict[str, list[Any]]]

# Without `.weight` and `.bias`, which stay as they are.
STEMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "eh_proj": "nextn.eh_proj",
        "enorm": "nextn.enorm",
        "hnorm": "nextn.hnorm",
        "embed_tokens": "nextn.embed_tokens",
        "shared_head.head": "nextn.shared_head_head",
        "shared_head.norm": "nextn.shared_head_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "mlp.gate": "ffn_gate_inp",
        "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    }
)
# Whole names: they have no `.weight` in checkpoints, or another one in GGUF.
WHOLE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mlp.e_score_correction_bias": "exp_probs_b.bias",
    }
)
MLA: Final[Mapping[str, str]] = MappingProxyType(
    {
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": "attn_kv_b",
    }
)
# Of sparse attention; heads are run without it, and carry it all the same.
INDEXER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "self_attn.indexer.k_norm": "indexer.k_norm",
        "self_attn.indexer.weights_proj": "indexer.proj",
        "self_attn.indexer.wk": "indexer.attn_k",
        "self_attn.indexer.wq_b": "indexer.attn_q_b",
    }
)


def no_layer_keys(config: Mapping[str, Any], n_trunk: int, n_heads: int) -> dict[str, list[Any]]:
    return {}


def no_factors(weights: CheckpointWeights) -> dict[str, float]:
    return {}


def clamps(config: Mapping[str, Any], n_heads: int) -> dict[str, list[Any]]:
    """Of the experts' activations, where all layers share one limit."""
    limit = config.get("swiglu_limit")
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        return {}
    return dict.fromkeys(("swiglu_clamp_exp", "swiglu_clamp_shexp"), [float(limit)] * n_heads)


@dataclass(frozen=True, slots=True)
class Family:
    architecture: str  # GGUF's word
    model_types: tuple[str, ...]  # of config.json
    layout: Layout
    stems: Mapping[str, str] = field(default_factory=dict)  # beside, or instead of, STEMS
    whole: Mapping[str, str] = field(default_factory=dict)  # beside WHOLE
    shifted_norms: bool = False  # x * (1 + w): GGUF wants 1 + w
    fuses_qkv: bool = False  # whatever the trunk has: llama.cpp's graph of the head wants it
    layer_keys: LayerKeys = no_layer_keys
    factors: Factors = no_factors  # by stem: what its numbers are multiplied by
    sizes: str = ""  # before the names of the attention's sizes in config.json, if heads have own
    needs: tuple[str, ...] = ()  # stems, where the layers of the model do not show them
    left_out: tuple[str, ...] = ()  # what GGUF has no place for, and nobody needs

    def stem(self, inner: str) -> str | None:
        """The GGUF name below `blk.N.`; None if it has none."""
        if found := self.whole.get(inner) or WHOLE.get(inner):
            return found
        name, dot, kind = inner.rpartition(".")
        if kind not in ("weight", "bias"):
            return None
        found = self.stems.get(name) or STEMS.get(name)
        return None if found is None else found + dot + kind


# Layouts -----------------------------------------------------------------------------------------


def behind_the_trunk(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """As layers `model.layers.N` with N from the number of layers on."""
    return numbered(weights, "model.layers.", n_trunk)


def of_their_own(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """As layers `mtp.layers.N`, each complete."""
    return numbered(weights, "mtp.layers.", 0)


def with_shared_parts(weights: CheckpointWeights, n_trunk: int) -> list[Names]:
    """As layers `mtp.layers.N`; projection and norms are there once, for all of them."""
    shared = {
        SHARED[name.removeprefix("mtp.")]: name
        for name in weights.names()
        if name.removeprefix("mtp.") in SHARED and name.startswith("mtp.")
    }
    blocks = of_their_own(weights, n_trunk)
    if blocks and weights.config.get("mtp_share_layers") is True:  # one layer, used several times
        blocks *= max(1, weights.config.get("num_nextn_predict_layers") or 1)
    return [shared | block for block in blocks]


SHARED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fc.weight": "eh_proj.weight",
        "pre_fc_norm_embedding.weight": "enorm.weight",
        "pre_fc_norm_hidden.weight": "hnorm.weight",
        "norm.weight": "shared_head.norm.weight",
        "embed_tokens.weight": "embed_tokens.weight",
        "lm_head.weight": "shared_head.head.weight",
    }
)


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
