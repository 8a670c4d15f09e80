"""What is known of the MTP heads of one architecture: a row for attach and for inspect.

A family is data. What a name alone cannot say (experts to be stacked, matrices to be split) is in
`head_block.py`, by stem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from .checkpoint_weights import CheckpointWeights

Names = dict[str, str]  # a tensor's name inside of its block -> in the checkpoint
Layout = Callable[["CheckpointWeights", int], list[Names]]
Factors = Callable[["CheckpointWeights"], dict[str, float]]
LayerKeys = Callable[[Mapping[str, Any], int, int], dict[str, list[Any]]]
Stems = tuple[str, ...]  # names below `blk.N.`, without `.weight`
Need = tuple[Stems, ...]  # one of these has to be complete

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
# Experts one by one, and all of a layer in one tensor.
EXPERT: Final = re.compile(r"(?:mlp|moe|mixer)\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
STACK: Final = re.compile(r"(?:mlp|moe|mixer)\.experts\.(gate_up|gate|up|down)_proj(?:\.weight)?")
NEXTN_STEMS: Final[Stems] = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")


class MtpFamily(Struct, frozen=True):
    architecture: str  # GGUF's word
    model_types: tuple[str, ...]  # of config.json
    layout: Layout
    block: tuple[Need, ...] = ()  # stems of a head's block in GGUF, beside NEXTN_STEMS
    stems: Mapping[str, str] = field(default_factory=dict)  # beside, or instead of, STEMS
    whole: Mapping[str, str] = field(default_factory=dict)  # beside WHOLE
    shifted_norms: bool = False  # x * (1 + w): checkpoints hold w, GGUF holds 1 + w
    fuses_qkv: bool = False  # whatever the trunk has: llama.cpp's graph of the head needs it
    layer_keys: LayerKeys = lambda config, n_trunk, n_heads: {}
    factors: Factors = lambda weights: {}  # by stem: what its numbers are multiplied by
    sizes: str = ""  # before the names of the attention's sizes in config.json, if heads have own
    needs: tuple[str, ...] = ()  # stems, where the layers of the model do not show them
    left_out: tuple[str, ...] = ()  # what GGUF has no name for
    always_has_head: bool = False  # all checkpoints of this architecture
    most_heads: int = 1  # that llama.cpp runs
    in_llama_cpp: bool = True  # it has a graph for the head
    bare_key_loads: bool = True  # llama.cpp loads a trunk that still has nextn_predict_layers

    def stem(self, inner: str) -> str | None:
        """The GGUF name below `blk.N.`; None if it has none."""
        if found := self.whole.get(inner) or WHOLE.get(inner):
            return found
        name, dot, kind = inner.rpartition(".")
        if kind not in ("weight", "bias"):
            return None
        found = self.stems.get(name) or STEMS.get(name)
        return None if found is None else found + dot + kind

    def missing(self, present: Collection[str]) -> list[str]:
        """Stems of a head's block that are not there; of alternatives, of the nearest."""
        found = [stem for stem in NEXTN_STEMS if stem not in present]
        for need in self.block:
            lacks = [[stem for stem in stems if stem not in present] for stems in need]
            found += sorted(lacks, key=len)[0]
        return found
